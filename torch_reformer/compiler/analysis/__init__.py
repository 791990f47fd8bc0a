"""Reports of plans: bytes, expected times, reasons."""
