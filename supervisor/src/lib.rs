//! Who runs, and who serves this request.
