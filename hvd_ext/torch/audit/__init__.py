"""What a training computes, step for step, as fingerprints: by which two runs are compared."""
