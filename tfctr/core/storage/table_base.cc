#include "tfctr/core/storage/table_base.h"

#include "tfctr/core/storage/metadata_fields.h"

namespace tfctr {

void PutRowShape(const RowShape& shape, Metadata* metadata) {
  (*metadata)["keys"] = shape.hashed ? "int64" : "row_ids";
  (*metadata)["dtype"] = DTypeName(shape.dtype);
  (*metadata)["width"] = std::to_string(shape.width);
  (*metadata)["row_bytes"] = std::to_string(shape.row_bytes);
}

bool ReadRowShape(const Metadata& metadata, RowShape* shape) {
  const std::string keys = TextField(metadata, "keys");
  int64_t width = 0;
  int64_t row_bytes = 0;
  if ((keys != "int64" && keys != "row_ids") || !ParseField(metadata, "width", &width) ||
      !ParseField(metadata, "row_bytes", &row_bytes)) {
    return false;
  }
  const Result<RowShape> made = MakeRowShape(keys == "int64", DTypeFromName(TextField(metadata, "dtype")), width);
  if (!made.ok() || made.value().row_bytes != row_bytes) return false;
  *shape = made.value();
  return true;
}

std::string RowShapeText(const RowShape& shape) {
  return std::string("rows of ") + DTypeName(shape.dtype) + " x " + std::to_string(shape.width) +
         (shape.hashed ? ", by key" : ", by row id");
}

Result<RowShape> MakeRowShape(bool hashed, DType dtype, int64_t width) {
  RowShape shape;
  shape.hashed = hashed;
  shape.dtype = dtype;
  shape.width = width;
  if (width <= 0 || width > (int64_t{1} << 31)) {
    return Status::Invalid("rows of " + std::to_string(width) + " elements can't be stored");
  }
  shape.row_bytes = hashed ? HashRowStride(dtype, width) : width * static_cast<int64_t>(DTypeSize(dtype));
  if (shape.row_bytes <= 0) return Status::Invalid(std::string("rows can't be stored as ") + DTypeName(dtype));
  return shape;
}

TableBase BaseOf(const TableFile& table) {
  TableBase base;
  base.name = table.name();
  base.path = table.path();
  base.fingerprint = table.fingerprint();
  base.shape.dtype = table.dtype();
  base.shape.width = table.width();
  base.shape.row_bytes = table.width() * static_cast<int64_t>(DTypeSize(table.dtype()));
  base.rows = table.rows();
  base.data = table.data();
  return base;
}

TableBase BaseOf(const HashFile& hash) {
  TableBase base;
  base.name = hash.name();
  base.path = hash.path();
  base.fingerprint = hash.fingerprint();
  base.shape.hashed = true;
  base.shape.dtype = hash.storage();
  base.shape.width = hash.dim();
  base.shape.row_bytes = hash.row_bytes();
  base.rows = hash.size();
  base.index = &hash.index();
  base.data = hash.rows();
  return base;
}

}  // namespace tfctr
