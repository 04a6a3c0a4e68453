//! Bodies of 41 and 42: locks on the queues of a group that consumes in order.

use super::{MessageQueue, lenient};
use serde::{Deserialize, Serialize};

/// Body of 41 and 42.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LockBatchRequestBody {
    #[serde(deserialize_with = "lenient::or_default")]
    pub client_id: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub consumer_group: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub mq_set: Vec<MessageQueue>,
    /// 5.x: not to be passed on to replicas.
    #[serde(deserialize_with = "lenient::boolean")]
    pub only_this_broker: bool,
}

/// Answer to 41: the queues that the client has locked now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockBatchResponseBody {
    #[serde(rename = "lockOKMQSet", deserialize_with = "lenient::or_default")]
    pub locked: Vec<MessageQueue>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::bodies::{decode, encode};

    fn queue() -> MessageQueue {
        MessageQueue {
            broker_name: "broker-a".to_owned(),
            queue_id: 4,
            topic: "T".to_owned(),
        }
    }

    #[test]
    fn requests_of_both_lines_are_read() {
        let old = r#"{"clientId":"c","consumerGroup":"G","mqSet":[{"brokerName":"broker-a","queueId":4,"topic":"T"}]}"#;
        let new = r#"{"clientId":"c","consumerGroup":"G","mqSet":[{"brokerName":"broker-a","queueId":4,"topic":"T"}],"onlyThisBroker":false}"#;
        let expected = LockBatchRequestBody {
            client_id: "c".to_owned(),
            consumer_group: "G".to_owned(),
            mq_set: vec![queue()],
            only_this_broker: false,
        };
        for body in [old, new] {
            let request = decode::<LockBatchRequestBody>(body.as_bytes());
            assert_eq!(request.ok().as_ref(), Some(&expected), "{body}");
        }
        assert_eq!(encode(&expected), new.as_bytes());
    }

    #[test]
    fn answer_is_the_captured_body() {
        let answer = LockBatchResponseBody {
            locked: vec![queue()],
        };
        let body = encode(&answer);
        assert_eq!(
            body,
            br#"{"lockOKMQSet":[{"brokerName":"broker-a","queueId":4,"topic":"T"}]}"#
        );
        assert_eq!(decode::<LockBatchResponseBody>(&body).ok(), Some(answer));
    }
}
