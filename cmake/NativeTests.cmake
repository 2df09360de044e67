# Every tfctr/core/*/*_test.cc becomes one executable over the TensorFlow-free sources (storage/, lookup/, engines/, and
# what of openvino/ needs no OpenVINO), run by ctest. Included by CMakeLists.txt when TFCTR_NATIVE_TESTS is on;
# `make check-native` does it under ASan and UBSan.
find_package(Threads REQUIRED)
enable_testing()
if(TFCTR_SANITIZE)
  add_compile_options(-fsanitize=${TFCTR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1)
  add_link_options(-fsanitize=${TFCTR_SANITIZE})
endif()

list(APPEND plain_sources ${core}/openvino/options.cc ${core}/openvino/compiled_blob.cc)
if(plain_sources)
  add_library(tfctr_plain STATIC ${plain_sources})
  target_include_directories(tfctr_plain PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(tfctr_plain PUBLIC Threads::Threads)
  foreach(source IN LISTS test_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE tfctr_plain)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 300)
  endforeach()
endif()
