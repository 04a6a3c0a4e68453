//! The wire format without I/O: bytes in, borrowed views out; it allocates only into buffers it is handed.

mod binary;
pub mod bodies;
pub mod codes;
pub mod command;
mod encode;
pub mod fastjson;
pub mod frame;
pub mod hash;
pub mod headers;
mod json;
pub mod message;
pub mod names;
pub mod properties;
mod reader;
pub mod response;
