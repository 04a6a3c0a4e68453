use super::*;
use crate::broker::tests::config_files::{apache_file, assert_kept, json, malicious_names};
use crate::broker::tests::{Desk, broker_config};
use proptest::prelude::*;

fn load(bytes: &[u8]) -> Groups {
    Groups::load(Some(bytes)).unwrap()
}

#[test]
fn files_of_apache_lose_nothing() {
    for store in ["clean", "crashed"] {
        let bytes = apache_file(store, "subscriptionGroup.json");
        let groups = load(&bytes);
        assert!(groups.contains("CG_go29918") && !groups.contains(""));
        let saved = groups.encode_file();
        assert_kept(&json(&bytes), &json(&saved), store);
        assert_eq!(load(&saved).encode_file(), saved, "{store}: saved twice");
    }
}

#[test]
fn what_is_not_known_is_kept() {
    let long = "g".repeat(200);
    let bytes = format!(
        r#"{{"dataVersion":{{"counter":7,"stateVersion":1,"timestamp":5}},"futureTable":[1],"forbiddenTable":{{"G":{{"T":1}}}},
        "subscriptionGroupTable":{{"G":{{"groupName":"G","retryMaxTimes":3,"groupRetryPolicy":{{"type":"CUSTOMIZED"}},
        "subscriptionDataSet":null}},"{long}":{{"groupName":"{long}","consumeEnable":false}}}}}}"#
    );
    let groups = load(bytes.as_bytes());
    assert_eq!(groups.get("G").unwrap().retry_max_times, 3);
    assert!(!groups.contains(&long), "kept, not served");
    assert_eq!(groups.version().counter, 7);
    assert_kept(&json(bytes.as_bytes()), &json(&groups.encode_file()), "");
}

#[test]
fn system_groups_are_there() {
    let groups = Groups::load(None).unwrap();
    for name in SYSTEM_GROUPS {
        assert!(groups.contains(name), "{name}");
    }
    let stored = br#"{"subscriptionGroupTable":{"TOOLS_CONSUMER":{"retryMaxTimes":2}}}"#;
    assert_eq!(
        load(stored).get("TOOLS_CONSUMER").unwrap().retry_max_times,
        2,
        "as it was"
    );
}

#[test]
fn a_file_that_can_not_be_used_is_named() {
    for bytes in [
        "",
        "[]",
        r#"{"subscriptionGroupTable":{"G":{"retryMaxTimes":"x"}}}"#,
    ] {
        let error = Groups::load(Some(bytes.as_bytes())).unwrap_err();
        assert!(error.contains(FILE), "{bytes}: {error}");
    }
}

#[test]
fn groups_are_created_where_that_is_on() {
    let mut desk = Desk::new();
    let mut found = |auto: bool, name: &str| {
        let config = BrokerConfig {
            auto_create_groups: auto,
            ..broker_config()
        };
        desk.with(|broker, cx| broker.groups.find_or_create(&config, name, cx))
            .is_some()
    };
    assert!(!found(false, "G"));
    assert!(found(false, "CID_RMQ_SYS_X"), "system groups always");
    assert!(found(false, "TOOLS_CONSUMER"));
    assert!(found(true, "G"));
    assert!(found(false, "G"), "it is there");
    let saved = json(&desk.files[FILE]);
    assert_eq!(saved["subscriptionGroupTable"]["G"]["retryQueueNums"], 1);
    assert_eq!(saved["subscriptionGroupTable"]["G"]["retryMaxTimes"], 16);
}

#[test]
fn names_that_are_not_allowed_come_in_nowhere() {
    let mut desk = Desk::new();
    let count = desk.broker.groups.len();
    for name in malicious_names() {
        let config = broker_config();
        let found = desk.with(|broker, cx| broker.groups.find_or_create(&config, &name, cx));
        assert!(found.is_none(), "{name:?}");
        let put = desk.with(|broker, cx| broker.groups.put(new_config(&name), cx));
        assert!(put.is_err(), "{name:?}");
        let escaped = serde_json::to_string(&name).unwrap();
        let bytes = format!(r#"{{"subscriptionGroupTable":{{{escaped}:{{}}}}}}"#);
        assert!(!load(bytes.as_bytes()).contains(&name), "{name:?}");
    }
    assert_eq!(desk.broker.groups.len(), count);
}

#[test]
fn a_turn_writes_once_and_only_changes() {
    let mut desk = Desk::new();
    desk.perform();
    desk.files.clear();
    let mut put = |retry_max_times: i32| {
        let group = GroupConfig {
            retry_max_times,
            ..new_config("G")
        };
        desk.with(|broker, cx| broker.groups.put(group, cx))
            .unwrap();
        desk.files.remove(FILE).is_some()
    };
    assert!(put(1) && put(2));
    assert!(!put(2), "nothing changed");
    desk.with(|broker, cx| broker.groups.remove("Nobody", cx));
    assert!(!desk.files.contains_key(FILE));
    desk.with(|broker, cx| broker.groups.remove("G", cx));
    let saved = json(&desk.files[FILE]);
    assert!(saved["subscriptionGroupTable"].get("G").is_none());
    assert_eq!(saved["dataVersion"]["counter"], 3);
}

/// Source: apache/rocketmq PR 8672, #8959: tables that grow with every name that clients think of.
#[test]
fn a_shard_has_a_bounded_number_of_groups() {
    let mut desk = Desk::new();
    desk.with(|broker, cx| {
        for index in 0..GROUPS_MAX - broker.groups.len() {
            broker.groups.insert(new_config(&format!("G{index}")));
        }
        let config = broker.config.clone();
        assert!(
            broker
                .groups
                .find_or_create(&config, "OneMore", cx)
                .is_none()
        );
        let error = broker.groups.put(new_config("OneMore"), cx).unwrap_err();
        assert!(error.contains("50000 groups"), "{error}");
        assert!(broker.groups.find_or_create(&config, "G7", cx).is_some());
    });
}

proptest! {
    /// Whatever a file holds, it holds the same after a start.
    #[test]
    fn files_survive_being_loaded_and_saved(
        groups in prop::collection::btree_map("([A-Za-z0-9_%|-]{0,130}|\\PC{0,9})", (any::<bool>(), any::<i32>(), 0..9_u32), 0..12),
        extra in prop::collection::btree_map("[a-z]{1,4}Future", any::<i64>(), 0..4),
        counter in 0..i64::MAX,
    ) {
        let table: Map<String, Value> = groups
            .iter()
            .map(|(name, (enable, times, queues))| {
                let mut group = serde_json::json!({
                    "groupName": name, "consumeEnable": enable, "retryMaxTimes": times, "retryQueueNums": queues,
                });
                for (key, value) in &extra {
                    group[key] = (*value).into();
                }
                (name.clone(), group)
            })
            .collect();
        let mut file = serde_json::json!({"subscriptionGroupTable": table, "dataVersion": {"counter": counter}});
        for (key, value) in &extra {
            file[key] = (*value).into();
        }
        let bytes = serde_json::to_vec(&file).unwrap();
        let saved = load(&bytes).encode_file();
        assert_kept(&json(&bytes), &json(&saved), "");
        prop_assert_eq!(load(&saved).encode_file(), saved);
    }
}
