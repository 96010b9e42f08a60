from keras import KerasTensor, Model

def ResNet50(*, include_top: bool, weights: str | None, input_tensor: KerasTensor, pooling: str | None) -> Model: ...
def MobileNetV3Small(
    *,
    include_top: bool,
    weights: str | None,
    input_tensor: KerasTensor,
    pooling: str | None,
    include_preprocessing: bool,
) -> Model: ...
def MobileNetV3Large(
    *,
    include_top: bool,
    weights: str | None,
    input_tensor: KerasTensor,
    pooling: str | None,
    include_preprocessing: bool,
) -> Model: ...
def EfficientNetV2B0(
    *,
    include_top: bool,
    weights: str | None,
    input_tensor: KerasTensor,
    pooling: str | None,
    include_preprocessing: bool,
) -> Model: ...
def EfficientNetV2B1(
    *,
    include_top: bool,
    weights: str | None,
    input_tensor: KerasTensor,
    pooling: str | None,
    include_preprocessing: bool,
) -> Model: ...
def EfficientNetV2B2(
    *,
    include_top: bool,
    weights: str | None,
    input_tensor: KerasTensor,
    pooling: str | None,
    include_preprocessing: bool,
) -> Model: ...
def EfficientNetV2B3(
    *,
    include_top: bool,
    weights: str | None,
    input_tensor: KerasTensor,
    pooling: str | None,
    include_preprocessing: bool,
) -> Model: ...
def ConvNeXtTiny(
    *,
    include_top: bool,
    weights: str | None,
    input_tensor: KerasTensor,
    pooling: str | None,
    include_preprocessing: bool,
) -> Model: ...
