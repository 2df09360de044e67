"""Why a tensor crosses between devices by itself: every reason that ``merging`` and ``rows`` can give."""

REASONS = {
    "user": "it has one entry per user",
    "users_apart": "it has one entry per user, and something else of the users crosses elsewhere",
    "size_apart": "it is a size, and nothing that crosses beside it has that many rows or positions",
    "open": "the size of its axis 1 is not known",
    "open_apart": "the size of its axis 1 is not known, and something else of unknown size crosses beside it",
    "size": "it is a size that does not follow from the number of rows",
    "forms": "its rows are not the same in {forms}",
    "dtype": "{dtype} can't be packed",
    "inner": "the sizes of its inner axes are not known",
    "empty": "it is empty",
    "mixed": "it reads inputs of users and of items",
    "rows": "its rows are not known to be the batch's ({where})",
    "same": "it is the same for every batch, whatever its rows",
    "no_rows": "it has not one entry per row of the batch",
}
