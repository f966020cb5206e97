"""What the ranks of a job do now, and why it stands still: read from the files that they map."""
