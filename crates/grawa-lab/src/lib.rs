//! The experiments of the GRAWA paper and our own.
