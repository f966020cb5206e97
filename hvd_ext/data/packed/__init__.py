"""One file with all samples of a data set, whose every MiB has a checksum."""
