//! Container images as OCI archives, made without Docker, a registry or root.
//!
//! An image has one layer and one platform. The same input gives the same bytes, and so the same digest: entries are
//! sorted, all files are root's, and the time is an argument. What is written follows the OCI image specification
//! (<https://github.com/opencontainers/image-spec>, `image-layout.md`, `manifest.md`, `config.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`archive`] | an image and its archive |
//! | [`layer`] | the files of an image |
//! | [`program`] | what an image without a libc can run |

pub mod archive;
pub mod layer;
pub mod program;

pub use archive::{Config, Image};
pub use layer::Layer;
pub use program::{Architecture, StaticProgram};
