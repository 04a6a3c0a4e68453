//! The wire format without I/O: bytes in, borrowed views out. What is on the path of a message allocates only into
//! buffers it is handed; the JSON [`bodies`], which are not, become owned values.

mod binary;
pub mod bodies;
pub mod calls;
pub mod codes;
pub mod command;
pub mod delay;
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
mod scan;
