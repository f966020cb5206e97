"""The file of a rank and that of its trace: layout, keys, reading and writing."""
