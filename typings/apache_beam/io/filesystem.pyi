class CompressionTypes:
    UNCOMPRESSED: str

class FileMetadata:
    path: str
    size_in_bytes: int

class MatchResult:
    pattern: str
    metadata_list: list[FileMetadata]
