"""Where KV lies: one module for each tier. These know tensors or stores, and no tree."""
