"""Windows: bounded rings of live rows with explicit origins, beside the archive of blocks."""
