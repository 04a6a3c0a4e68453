//! Bodies by which clients make themselves known: 34, 38, 46.
//!
//! Java and Go send names of enumerations, C++ sends ordinals, quotes the version of a subscription and leaves the
//! tags and their codes out: whoever filters has to take them from `sub_string`.

use super::lenient::{self, EnumNames};
use serde::{Deserialize, Deserializer, Serialize};

/// Names of constants by their ordinals. Source: apache/rocketmq 4.9.8 `common/.../protocol/heartbeat/`.
const CONSUME_TYPE: EnumNames = EnumNames {
    names: &["CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"],
    default: "CONSUME_PASSIVELY",
};
const MESSAGE_MODEL: EnumNames = EnumNames {
    names: &["BROADCASTING", "CLUSTERING"],
    default: "CLUSTERING",
};
const CONSUME_FROM_WHERE: EnumNames = EnumNames {
    names: &[
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ],
    default: "CONSUME_FROM_LAST_OFFSET",
};

fn consume_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    CONSUME_TYPE.deserialize(deserializer)
}

fn message_model<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    MESSAGE_MODEL.deserialize(deserializer)
}

fn consume_from_where<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    CONSUME_FROM_WHERE.deserialize(deserializer)
}

/// Body of 34: what a client is, sent to every broker each 30 s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Heartbeat {
    #[serde(rename = "clientID", deserialize_with = "lenient::or_default")]
    pub client_id: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub consumer_data_set: Vec<ConsumerData>,
    /// 5.x: not 0 where the client speaks the second version of heartbeats.
    #[serde(deserialize_with = "lenient::integer")]
    pub heartbeat_fingerprint: i32,
    #[serde(deserialize_with = "lenient::or_default")]
    pub producer_data_set: Vec<ProducerData>,
    /// 5.x: subscriptions are left out, those of the heartbeat before still hold.
    #[serde(deserialize_with = "lenient::boolean")]
    pub without_sub: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProducerData {
    #[serde(deserialize_with = "lenient::or_default")]
    pub group_name: String,
}

/// A group of a client and what it wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerData {
    /// `CONSUME_FROM_LAST_OFFSET`, `CONSUME_FROM_FIRST_OFFSET`, `CONSUME_FROM_TIMESTAMP`, or a deprecated one.
    #[serde(deserialize_with = "consume_from_where")]
    pub consume_from_where: String,
    /// `CONSUME_PASSIVELY` (push), `CONSUME_ACTIVELY` (pull), `CONSUME_POP`.
    #[serde(deserialize_with = "consume_type")]
    pub consume_type: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub group_name: String,
    /// `CLUSTERING` or `BROADCASTING`.
    #[serde(deserialize_with = "message_model")]
    pub message_model: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub subscription_data_set: Vec<SubscriptionData>,
    #[serde(deserialize_with = "lenient::boolean")]
    pub unit_mode: bool,
}

impl Default for ConsumerData {
    fn default() -> Self {
        Self {
            consume_from_where: CONSUME_FROM_WHERE.default.to_owned(),
            consume_type: CONSUME_TYPE.default.to_owned(),
            group_name: String::new(),
            message_model: MESSAGE_MODEL.default.to_owned(),
            subscription_data_set: Vec::new(),
            unit_mode: false,
        }
    }
}

/// What a group wants of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionData {
    #[serde(deserialize_with = "lenient::boolean")]
    pub class_filter_mode: bool,
    /// Hash codes of the tags; may be empty although there are tags.
    #[serde(deserialize_with = "lenient::integers")]
    pub code_set: Vec<i64>,
    /// "TAG" or "SQL92".
    #[serde(deserialize_with = "lenient::or_default")]
    pub expression_type: String,
    /// The expression; "*" is everything.
    #[serde(deserialize_with = "lenient::or_default")]
    pub sub_string: String,
    /// Grows with every change; milliseconds from Java, nanoseconds from Go.
    #[serde(deserialize_with = "lenient::integer")]
    pub sub_version: i64,
    /// May be empty although there are tags.
    #[serde(deserialize_with = "lenient::or_default")]
    pub tags_set: Vec<String>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic: String,
}

impl Default for SubscriptionData {
    fn default() -> Self {
        Self {
            class_filter_mode: false,
            code_set: Vec::new(),
            expression_type: crate::protocol::headers::EXPRESSION_TYPE_TAG.to_owned(),
            sub_string: String::new(),
            sub_version: 0,
            tags_set: Vec::new(),
            topic: String::new(),
        }
    }
}

/// Answer to 38: the ids of a group's members, the asker among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerIds {
    #[serde(deserialize_with = "lenient::or_default")]
    pub consumer_id_list: Vec<String>,
}

/// Body of 46: is this subscription possible?
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CheckClientConfig {
    #[serde(deserialize_with = "lenient::or_default")]
    pub client_id: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub group: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub namespace: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub subscription_data: SubscriptionData,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::bodies::{decode, encode};

    fn check(body: &str, expected: &Heartbeat) {
        let heartbeat: Heartbeat =
            decode(body.as_bytes()).unwrap_or_else(|e| panic!("{body}: {e}"));
        assert_eq!(heartbeat, *expected, "{body}");
        assert_eq!(
            decode::<Heartbeat>(&encode(&heartbeat)).ok().as_ref(),
            Some(expected)
        );
    }

    fn subscription(topic: &str, sub_version: i64) -> SubscriptionData {
        SubscriptionData {
            sub_string: "*".to_owned(),
            sub_version,
            topic: topic.to_owned(),
            ..SubscriptionData::default()
        }
    }

    fn heartbeat(consumers: Vec<ConsumerData>, producer: &str) -> Heartbeat {
        Heartbeat {
            client_id: "c".to_owned(),
            consumer_data_set: consumers,
            producer_data_set: vec![ProducerData {
                group_name: producer.to_owned(),
            }],
            ..Heartbeat::default()
        }
    }

    fn consumer(subscription_data_set: Vec<SubscriptionData>) -> ConsumerData {
        ConsumerData {
            group_name: "G".to_owned(),
            subscription_data_set,
            ..ConsumerData::default()
        }
    }

    #[test]
    fn heartbeat_of_java_5_is_read_and_written_alike() {
        let body = r#"{"clientID":"c","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_TIMESTAMP","consumeType":"CONSUME_POP","groupName":"G","messageModel":"BROADCASTING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":1700000000000,"tagsSet":["TagA"],"topic":"T"}],"unitMode":false}],"heartbeatFingerprint":7,"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":true}"#;
        let tagged = SubscriptionData {
            code_set: vec![2_598_919],
            sub_string: "TagA".to_owned(),
            tags_set: vec!["TagA".to_owned()],
            ..subscription("T", 1_700_000_000_000)
        };
        let consumer = ConsumerData {
            consume_from_where: "CONSUME_FROM_TIMESTAMP".to_owned(),
            consume_type: "CONSUME_POP".to_owned(),
            message_model: "BROADCASTING".to_owned(),
            ..consumer(vec![tagged])
        };
        let expected = Heartbeat {
            heartbeat_fingerprint: 7,
            without_sub: true,
            ..heartbeat(vec![consumer], "CLIENT_INNER_PRODUCER")
        };
        check(body, &expected);
        assert_eq!(encode(&expected), body.as_bytes());
    }

    /// The second example of `requests.md` section F.2: quoted codes, nanoseconds, absent keys.
    #[test]
    fn heartbeat_of_go_is_read() {
        let body = r#"{"clientID":"c","producerDataSet":[{"groupName":"PG"}],"consumerDataSet":[{"groupName":"G","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"*","tagsSet":null,"codeSet":["2598919"],"subVersion":1700000000000000000,"expressionType":"TAG"}],"unitMode":false}]}"#;
        let coded = SubscriptionData {
            code_set: vec![2_598_919],
            ..subscription("T", 1_700_000_000_000_000_000)
        };
        let consumer = ConsumerData {
            consume_from_where: "CONSUME_FROM_FIRST_OFFSET".to_owned(),
            ..consumer(vec![coded])
        };
        check(body, &heartbeat(vec![consumer], "PG"));
    }

    /// Captured from both C++ lines: ordinals, a quoted version, no tags, a newline at the end.
    #[test]
    fn heartbeat_of_cpp_is_read() {
        let body = "{\"clientID\":\"c\",\"consumerDataSet\":[{\"consumeFromWhere\":0,\"consumeType\":1,\"groupName\":\"G\",\
            \"messageModel\":1,\"subscriptionDataSet\":[{\"subString\":\"*\",\"subVersion\":\"1796098548612\",\
            \"topic\":\"T\"}]}],\"producerDataSet\":[{\"groupName\":\"PG\"}]}\n";
        let consumer = consumer(vec![subscription("T", 1_796_098_548_612)]);
        assert_eq!(consumer.message_model, "CLUSTERING");
        assert_eq!(consumer.consume_type, "CONSUME_PASSIVELY");
        check(body, &heartbeat(vec![consumer], "PG"));
    }

    #[test]
    fn nulls_missing_and_unknown_keys_are_defaults() {
        check(
            r#"{"clientID":"c","consumerDataSet":[{"groupName":"G","consumeType":9,"messageModel":-1,"consumeFromWhere":null,
            "subscriptionDataSet":null,"newKey":{"a":[1]}}],"producerDataSet":[{"groupName":"PG"}],"another":null}"#,
            &heartbeat(vec![consumer(Vec::new())], "PG"),
        );
        check(
            r#"{"consumerDataSet":null,"producerDataSet":[]}"#,
            &Heartbeat::default(),
        );
    }

    #[test]
    fn consumer_id_list_is_the_captured_body() {
        let list = ConsumerIds {
            consumer_id_list: vec!["192.0.2.2@17845".to_owned()],
        };
        let body = encode(&list);
        assert_eq!(body, br#"{"consumerIdList":["192.0.2.2@17845"]}"#);
        assert_eq!(decode::<ConsumerIds>(&body).ok(), Some(list));
        assert_eq!(encode(&ConsumerIds::default()), br#"{"consumerIdList":[]}"#);
    }

    #[test]
    fn check_of_a_client_is_read() {
        let body = br#"{"clientId":"c","group":"G","subscriptionData":{"expressionType":"SQL92","subString":"a > 1","topic":"T"}}"#;
        let check: CheckClientConfig = decode(body).expect("a body");
        assert_eq!(
            (&*check.client_id, &*check.group, &*check.namespace),
            ("c", "G", "")
        );
        let subscription = check.subscription_data;
        assert_eq!(
            (&*subscription.expression_type, &*subscription.sub_string),
            ("SQL92", "a > 1")
        );
    }
}
