from apache_beam import PCollection, Pipeline, PTransform

class ReadFromTFRecord(PTransform[Pipeline, PCollection[bytes]]):
    def __init__(self, file_pattern: str) -> None: ...

class WriteToTFRecord(PTransform[PCollection[bytes], PCollection[str]]):
    def __init__(self, file_path_prefix: str, *, file_name_suffix: str = "") -> None: ...
