"""The similarity of a picture to the true one: PSNR and SSIM, on RGB or on luma."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edsr.bicubic import Pixels

# Weights of R, G, B in luma (ITU-R BT.601), over a range of 256.
_LUMA = np.array([65.738, 129.057, 25.064]) / 256
_WINDOW = 11


def psnr_db(result: Pixels, truth: Pixels, shave: int, *, luma: bool = False) -> float:
    """Peak signal-to-noise ratio in dB of two images (H, W, 3), infinite if they are equal.

    Args:
        result: the image to evaluate.
        truth: the true image.
        shave: pixels left out along each edge.
        luma: compare only luma, as is usual for Set5, Set14, B100 and Urban100.
    """
    difference = (_shaved(result, shave, luma) - _shaved(truth, shave, luma)) / 255
    error = float(np.mean(difference**2))
    return float(-10 * np.log10(error)) if error else float("inf")


def ssim(result: Pixels, truth: Pixels, shave: int, *, luma: bool = False) -> float:
    """Structural similarity, 1 if they are equal (Wang et al., 2004: 11 x 11, sigma 1.5).

    Arguments as of `psnr_db`; of RGB it is the mean over the three.
    """
    # Slow to import, and training needs none of it.
    from skimage.metrics import structural_similarity

    return float(
        structural_similarity(
            _shaved(result, shave, luma),
            _shaved(truth, shave, luma),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=255,
            channel_axis=None if luma else 2,
        )
    )


def least_length(shave: int) -> int:
    """The shortest edge of an image that both metrics accept."""
    return 2 * shave + _WINDOW


def _shaved(pixels: Pixels, shave: int, luma: bool) -> NDArray[np.float64]:
    inner = pixels[shave : pixels.shape[0] - shave, shave : pixels.shape[1] - shave]
    colors: NDArray[np.float64] = inner.astype(np.float64)
    return colors @ _LUMA + 16 if luma else colors
