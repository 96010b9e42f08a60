from typing import IO

import numpy as np

def loadmat(file_name: IO[bytes], *, squeeze_me: bool = False) -> dict[str, np.ndarray]: ...
