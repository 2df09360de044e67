"""Load generator: sends prepared requests to a server (or to a model in this process) and tells what came of them."""
