//! Checks of single values, and their parsed forms.

use super::keys::Kind;
use crate::protocol::names;
use std::net::IpAddr;

/// The value in its canonical spelling. **Errors**: what is allowed instead.
pub fn check(kind: Kind, text: &str) -> Result<String, String> {
    if text.is_empty() {
        return match kind {
            Kind::Host | Kind::Addresses | Kind::Path | Kind::Processors | Kind::Text => {
                Ok(String::new())
            }
            _ => Err(format!("it is empty; allowed are {}", kind.allowed())),
        };
    }
    if has_comment(text) {
        return Err("there is a comment in the value; put it on a line of its own".to_owned());
    }
    let allowed = || format!("allowed are {}", kind.allowed());
    match kind {
        Kind::Bool => match text.to_ascii_lowercase().as_str() {
            lower @ ("true" | "false") => Ok(lower.to_owned()),
            _ => Err("allowed are true and false".to_owned()),
        },
        Kind::Integer { min, max } => match text.parse::<i64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(number.to_string()),
            _ => Err(format!("allowed are {min} to {max}")),
        },
        Kind::OneOf(words) => match words.iter().find(|word| word.eq_ignore_ascii_case(text)) {
            Some(word) => Ok((*word).to_owned()),
            None => Err(format!("allowed are {}", words.join(", "))),
        },
        Kind::Name => check_name(text).map(|()| text.to_owned()),
        Kind::Ip => match text.parse::<IpAddr>() {
            Ok(ip) => Ok(ip.to_string()),
            Err(_) => Err("it is no IP address".to_owned()),
        },
        Kind::Host => check_host(text).map(|()| text.to_owned()),
        Kind::Addresses => Ok(addresses(text)?.join(";")),
        Kind::Processors => processors(text).map(|_| text.to_owned()),
        Kind::Hours => {
            let mut hours = text.split(';');
            let is_hour = |hour: &str| hour.trim().parse::<u8>().is_ok_and(|hour| hour < 24);
            if hours.all(is_hour) {
                Ok(text.to_owned())
            } else {
                Err("allowed are hours of the day, 04 or 04;16".to_owned())
            }
        }
        Kind::Delays => {
            let mut delays = text.split_whitespace();
            if delays.all(is_delay) {
                Ok(text.to_owned())
            } else {
                Err(allowed())
            }
        }
        Kind::Path | Kind::Text => Ok(text.to_owned()),
    }
}

/// `10.0.0.1 # eth0`: the properties format has comments only on lines of their own, so that such text is part of the
/// value, and brokers have registered under it (apache/rocketmq#6631).
fn has_comment(text: &str) -> bool {
    [" #", "\t#", " //", "\t//", " !", "\t!"]
        .iter()
        .any(|start| text.contains(start))
}

/// Cluster and broker names become topics, and part of handles that are split at `:`, `@` and spaces.
fn check_name(text: &str) -> Result<(), String> {
    names::check_topic(text).map_err(|error| error.to_string().replacen("the topic", "it", 1))?;
    // Room for "-255" and "_REPLY_TOPIC".
    if text.len() > 100 {
        return Err(format!("it has {} bytes, the limit is 100", text.len()));
    }
    if names::is_system_topic(text) || names::is_retry_or_dlq(text) {
        return Err("a system topic has this name".to_owned());
    }
    Ok(())
}

fn check_host(text: &str) -> Result<(), String> {
    let is_name = text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    if text.parse::<IpAddr>().is_ok() || is_name && (1..=253).contains(&text.len()) {
        return Ok(());
    }
    Err("it is no IP address and no host name".to_owned())
}

/// `host:port` of each name server. **Errors**: which one is none.
pub fn addresses(text: &str) -> Result<Vec<String>, String> {
    let mut all: Vec<String> = Vec::new();
    for address in text.split([';', ',']).map(str::trim) {
        if address.is_empty() {
            continue;
        }
        let parts = address.rsplit_once(':');
        let is_address = parts.is_some_and(|(host, port)| {
            let host = host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'))
                .unwrap_or(host);
            check_host(host).is_ok() && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if !is_address {
            return Err(format!(
                "{address:?} is no address of a name server; write host:port;host:port"
            ));
        }
        if !all.iter().any(|known| known == address) {
            all.push(address.to_owned());
        }
    }
    Ok(all)
}

/// Processors of a list like `0-3,6`, as written. **Errors**: it is no such list.
pub fn processors(text: &str) -> Result<Vec<usize>, String> {
    let error = || "allowed are processors like 0-3,6".to_owned();
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| error());
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last >= 4096 {
            return Err(error());
        }
        all.extend((first..=last).map(usize::from));
    }
    Ok(all)
}

fn is_delay(text: &str) -> bool {
    let Some((number, unit)) = text.split_at_checked(text.len() - 1) else {
        return false;
    };
    matches!(unit, "s" | "m" | "h" | "d") && number.parse::<u32>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_and_spelled_alike() {
        let number = Kind::Integer { min: 1, max: 9 };
        let words = Kind::OneOf(&["ASYNC_FLUSH", "SYNC_FLUSH"]);
        for (kind, text, expected) in [
            (Kind::Bool, "TRUE", "true"),
            (number, "+7", "7"),
            (number, "007", "7"),
            (words, "sync_flush", "SYNC_FLUSH"),
            (Kind::Name, "broker-a", "broker-a"),
            (Kind::Ip, "0.0.0.0", "0.0.0.0"),
            (Kind::Ip, "0::1", "::1"),
            (Kind::Host, "", ""),
            (Kind::Host, "mq-1.example.org", "mq-1.example.org"),
            (Kind::Host, "10.0.0.1", "10.0.0.1"),
            (Kind::Addresses, "", ""),
            (Kind::Addresses, " a:1 ;; b:2,a:1", "a:1;b:2"),
            (Kind::Addresses, "[::1]:9876", "[::1]:9876"),
            (Kind::Path, "/data/a # b", ""),
            (Kind::Path, "/data/a#b", "/data/a#b"),
            (Kind::Processors, "0-3, 6", "0-3, 6"),
            (Kind::Hours, "04;16", "04;16"),
            (Kind::Delays, "1s 5m 2h 1d", "1s 5m 2h 1d"),
            (Kind::Text, "any thing", "any thing"),
        ] {
            let checked = check(kind, text);
            if expected.is_empty() && !text.is_empty() {
                assert!(checked.is_err(), "{kind:?} {text:?}");
            } else {
                assert_eq!(checked.as_deref(), Ok(expected), "{kind:?} {text:?}");
            }
        }
    }

    #[test]
    fn wrong_values_are_refused() {
        let number = Kind::Integer { min: 1, max: 9 };
        let long = "x".repeat(101);
        for (kind, text) in [
            (Kind::Bool, ""),
            (Kind::Bool, "yes"),
            (Kind::Bool, "1"),
            (number, ""),
            (number, "0"),
            (number, "10"),
            (number, "1.0"),
            (number, "1 # one"),
            (number, "99999999999999999999"),
            (Kind::OneOf(&["A"]), "B"),
            (Kind::Name, ""),
            (Kind::Name, "a b"),
            (Kind::Name, "a:b"),
            (Kind::Name, "../x"),
            (Kind::Name, "TBW102"),
            (Kind::Name, "rmq_sys_x"),
            (Kind::Name, "%RETRY%x"),
            (Kind::Name, &long),
            (Kind::Ip, ""),
            (Kind::Ip, "localhost"),
            (Kind::Host, "10.0.0.1 # eth0"),
            (Kind::Host, "10.0.0.1#eth0"),
            (Kind::Host, "a b"),
            (Kind::Addresses, "a"),
            (Kind::Addresses, "a:0"),
            (Kind::Addresses, "a:65536"),
            (Kind::Addresses, ":1"),
            (Kind::Addresses, "a:1;b"),
            (Kind::Addresses, "http://a:1"),
            (Kind::Processors, "3-1"),
            (Kind::Processors, "a"),
            (Kind::Processors, "0-99999"),
            (Kind::Hours, "24"),
            (Kind::Hours, "4am"),
            (Kind::Delays, "1s 5"),
            (Kind::Delays, "s"),
            (Kind::Delays, "1é"),
        ] {
            assert!(check(kind, text).is_err(), "{kind:?} {text:?}");
        }
    }

    #[test]
    fn processors_are_listed() {
        assert_eq!(processors("0-2,6,4"), Ok(vec![0, 1, 2, 6, 4]));
        assert_eq!(processors(""), Ok(vec![]));
    }
}
