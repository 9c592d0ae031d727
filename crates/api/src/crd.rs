//! The CRDs as they are installed, made from the types.
