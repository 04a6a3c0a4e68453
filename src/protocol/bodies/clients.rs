//! What clients send about themselves.

use super::null_as_default;
use serde::{Deserialize, Serialize};

/// Body of 34. Go writes nanoseconds into `subVersion` and strings into `codeSet`; the codes are computed here
/// from the tags, so they are not read at all.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Heartbeat {
    #[serde(rename = "clientID")]
    pub client_id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub producer_data_set: Vec<ProducerData>,
    #[serde(deserialize_with = "null_as_default")]
    pub consumer_data_set: Vec<ConsumerData>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProducerData {
    #[serde(deserialize_with = "null_as_default")]
    pub group_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerData {
    #[serde(deserialize_with = "null_as_default")]
    pub group_name: String,
    /// CONSUME_PASSIVELY, CONSUME_ACTIVELY, CONSUME_POP.
    #[serde(deserialize_with = "null_as_default")]
    pub consume_type: String,
    /// CLUSTERING or BROADCASTING.
    #[serde(deserialize_with = "null_as_default")]
    pub message_model: String,
    #[serde(deserialize_with = "null_as_default")]
    pub consume_from_where: String,
    #[serde(deserialize_with = "null_as_default")]
    pub subscription_data_set: Vec<SubscriptionData>,
    pub unit_mode: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionData {
    pub class_filter_mode: bool,
    #[serde(deserialize_with = "null_as_default")]
    pub expression_type: String,
    #[serde(deserialize_with = "null_as_default")]
    pub sub_string: String,
    pub sub_version: i64,
    #[serde(deserialize_with = "null_as_default")]
    pub topic: String,
}

/// Body of 46.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckClientConfig {
    #[serde(deserialize_with = "null_as_default")]
    pub client_id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub group: String,
    #[serde(deserialize_with = "null_as_default")]
    pub subscription_data: SubscriptionData,
}

/// Body of the answer to 38.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerIds {
    pub consumer_id_list: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;

    #[test]
    fn heartbeats_of_all_clients_are_read() {
        let go = br#"{"clientID":"10.0.0.3@4242","producerDataSet":[{"groupName":"PG"}],"consumerDataSet":[{"groupName":"G",
            "consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"TagA","tagsSet":null,
            "codeSet":["2598919"],"subVersion":1700000000000000000,"expressionType":"TAG"}],"unitMode":false}]}"#;
        let heartbeat: Heartbeat = decode(go).expect("Go");
        let subscription = &heartbeat.consumer_data_set[0].subscription_data_set[0];
        assert_eq!(subscription.sub_version, 1_700_000_000_000_000_000);
        let nulls: Heartbeat =
            decode(br#"{"clientID":"c","producerDataSet":null,"consumerDataSet":[]}"#)
                .expect("nulls");
        assert_eq!(nulls.producer_data_set, vec![]);
    }
}
