"""Arrow's numbers for types: what `DataType.id` gives."""

Type_NA: int
Type_BINARY: int
Type_STRING: int
Type_LARGE_BINARY: int
Type_LARGE_STRING: int
Type_BINARY_VIEW: int
Type_STRING_VIEW: int
Type_FIXED_SIZE_BINARY: int
Type_LIST: int
Type_LARGE_LIST: int
Type_MAP: int
Type_DICTIONARY: int
Type_STRUCT: int
