//! What a broker asks its clients (326, 307, 309, 221) or name servers (105), and what they answer: owned, since it waits or goes to
//! another shard.

use super::codes::RequestCode;
use crate::ids::ShardId;
use bytes::Bytes;

#[derive(Clone, Debug)]
pub struct ClientCall {
    pub code: RequestCode,
    pub fields: Vec<(&'static str, String)>,
    pub body: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAnswer {
    pub code: i32,
    pub remark: Option<String>,
    pub body: Bytes,
}

/// Why there is no answer of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    #[error("the client is not connected")]
    NotConnected,
    #[error("the client closed its connection")]
    Gone,
    #[error("the client did not answer in time")]
    Timeout,
    #[error("too many requests to clients wait for their answers")]
    Busy,
}

pub type CallResult = Result<ClientAnswer, CallError>;

/// A call for a client that is not connected to the shard which was asked: it goes from shard to shard.
#[derive(Clone, Debug)]
pub struct ForwardedCall {
    /// The shard that was asked, and its number for the call.
    pub origin: ShardId,
    pub id: u64,
    pub client_id: String,
    pub call: ClientCall,
}
