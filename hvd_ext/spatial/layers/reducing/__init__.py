"""Operations that reduce cells: sums and extremes, normalisation, losses."""
