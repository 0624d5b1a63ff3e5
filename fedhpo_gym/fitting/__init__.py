"""Programs that make what the package stores; they may use libraries that running it may not."""
