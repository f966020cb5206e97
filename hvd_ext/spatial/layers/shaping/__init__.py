"""Operations that move cells or change shapes, and compute nothing."""
