//! Attributes of topics: `+key=value` sets, `-key` removes.
//!
//! Source: apache/rocketmq 5.3.x `common/.../attribute/AttributeParser.java`, `AttributeUtil.java`,
//! `common/.../TopicAttributes.java`.

use std::collections::BTreeMap;

/// Attributes by key, without signs.
pub type Attributes = BTreeMap<String, String>;

const MESSAGE_TYPES: [&str; 5] = ["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"];

/// Splits what a tool writes: changes separated by commas. **Errors**: what is wrong with one.
pub fn parse(text: &str) -> Result<Attributes, String> {
    let mut changes = Attributes::new();
    for change in text.split(',').map(str::trim).filter(|c| !c.is_empty()) {
        let (key, value) = change.split_once('=').unwrap_or((change, ""));
        let is_whole = match key.chars().next() {
            Some('+') => change.contains('='),
            Some('-') => !change.contains('='),
            _ => false,
        };
        if !is_whole {
            return Err(format!(
                "attribute {change:?} is neither +key=value nor -key"
            ));
        }
        if changes.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("attribute {key} is there twice"));
        }
    }
    Ok(changes)
}

/// Applies changes, keys with their signs, to the attributes of a topic that is there, or to none.
///
/// A topic with batches in its queues (`queue.type=BatchCQ`) is what benchmarks ask for by default; here every topic
/// has simple queues, which take batches as well, and so it says, since Apache goes by this attribute when it opens
/// the store.
///
/// **Errors**: what is wrong with one change; none is made then.
pub fn alter(known: Option<&Attributes>, changes: &Attributes) -> Result<Attributes, String> {
    let mut altered = known.cloned().unwrap_or_default();
    for (signed, value) in changes {
        if let Some(key) = signed.strip_prefix('+') {
            check(key, value)?;
            let value = match (key, value.as_str()) {
                ("queue.type", "BatchCQ") => "SimpleCQ",
                (_, value) => value,
            };
            let before = altered.insert(key.to_owned(), value.to_owned());
            let is_fixed = matches!(key, "queue.type" | "cleanup.policy");
            if is_fixed && before.is_some_and(|before| before != value) {
                return Err(format!("attribute {key} can't be changed"));
            }
        } else if let Some(key) = signed.strip_prefix('-') {
            if altered.remove(key).is_none() {
                return Err(format!("attribute {key} is not there, it can't be removed"));
            }
        } else {
            return Err(format!(
                "attribute {signed:?} has no sign, it is neither +key nor -key"
            ));
        }
    }
    Ok(altered)
}

fn check(key: &str, value: &str) -> Result<(), String> {
    let allowed: &[&str] = match key {
        "message.type" if value == "MIXED" => {
            return Err("MIXED message type is not supported.".to_owned());
        }
        "message.type" => &MESSAGE_TYPES,
        "queue.type" => &["SimpleCQ", "BatchCQ"],
        "cleanup.policy" if value == "COMPACTION" => {
            return Err("cleanup.policy=COMPACTION is not supported by this version".to_owned());
        }
        "cleanup.policy" => &["DELETE"],
        "reserve.time" => {
            return Err("reserve.time is not supported without tiered storage".to_owned());
        }
        _ => {
            return Err(format!(
                "unsupported key: {key:?}; there are message.type, queue.type, cleanup.policy"
            ));
        }
    };
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(format!(
        "{key} is {value:?}, allowed are {}",
        allowed.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Attributes {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn changes_are_split() {
        let parsed = |pairs: &[(&str, &str)]| Ok(map(pairs));
        assert_eq!(parse(""), parsed(&[]));
        assert_eq!(
            parse("+a=1, -b ,+c=x=y,"),
            parsed(&[("+a", "1"), ("-b", ""), ("+c", "x=y")])
        );
        for wrong in ["a=1", "a", "+a", "-a=1", "=", "+a=1,+a=2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn changes_are_applied_to_what_is_there() {
        let known = map(&[("message.type", "NORMAL"), ("queue.type", "SimpleCQ")]);
        let changed = alter(Some(&known), &map(&[("+message.type", "FIFO")]));
        assert_eq!(
            changed,
            Ok(map(&[("message.type", "FIFO"), ("queue.type", "SimpleCQ")]))
        );
        let removed = alter(Some(&known), &map(&[("-message.type", "")]));
        assert_eq!(removed, Ok(map(&[("queue.type", "SimpleCQ")])));
        let same = alter(Some(&known), &map(&[("+queue.type", "SimpleCQ")]));
        assert_eq!(same, Ok(known.clone()));
    }

    /// What the RocketMQ driver of OpenMessaging Benchmark creates its topics with.
    #[test]
    fn queues_are_simple_ones() {
        let made = alter(None, &map(&[("+queue.type", "BatchCQ")]));
        assert_eq!(made, Ok(map(&[("queue.type", "SimpleCQ")])));
    }

    #[test]
    fn what_can_not_be_had_is_refused() {
        let known = map(&[("cleanup.policy", "COMPACTION")]);
        for (key, value) in [
            ("+message.type", "MIXED"),
            ("+message.type", "normal"),
            ("+cleanup.policy", "COMPACTION"),
            ("+cleanup.policy", "DELETE"),
            ("+queue.type", "X"),
            ("+reserve.time", "1"),
            ("+unknown", "1"),
            ("-absent", ""),
            ("message.type", "FIFO"),
            ("", ""),
        ] {
            let altered = alter(Some(&known), &map(&[(key, value)]));
            assert!(altered.is_err(), "{key}={value}: {altered:?}");
        }
    }
}
