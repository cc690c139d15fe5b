"""The scheduler explained: the cluster as its policy sees it, reasons, expectations, what-if. Nothing is decided."""
