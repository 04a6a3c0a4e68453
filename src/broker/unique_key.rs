//! UNIQ_KEY for messages that come without one.
//!
//! Clients make these keys themselves; only foreign producers leave them out. Tools take the address, the process
//! and the time out of a key, so that it has the client's shape:
//!
//! ```text
//! 4|16  address of the broker
//!    2  its port, where a client has its process id: it tells the shards of one machine apart
//!    4  months since 1970, where a client has the hash of its class loader: no key comes again next month
//!    4  milliseconds since the start of the month (UTC)
//!    2  counter
//! ```
//!
//! Source: apache/rocketmq 5.3.x `common/.../message/MessageClientIDSetter.java`.

use arrayvec::ArrayString;
use std::net::{IpAddr, SocketAddr};

const DAY_MS: u64 = 86_400_000;

/// Makes the keys of one shard.
#[derive(Debug, Default)]
pub struct UniqueKeys {
    counter: u16,
}

impl UniqueKeys {
    /// A key that this shard has not given before, unless it makes more than 65 536 of them in a millisecond.
    pub fn make(&mut self, address: SocketAddr, wall_ms: u64) -> ArrayString<56> {
        let mut key = ArrayString::new();
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => push_hex(&ip.octets(), &mut key),
            IpAddr::V6(ip) => push_hex(&ip.octets(), &mut key),
        }
        let (month, start_ms) = month_of(wall_ms);
        push_hex(&address.port().to_be_bytes(), &mut key);
        push_hex(&month.to_be_bytes(), &mut key);
        push_hex(&((wall_ms - start_ms) as u32).to_be_bytes(), &mut key);
        push_hex(&self.counter.to_be_bytes(), &mut key);
        self.counter = self.counter.wrapping_add(1);
        key
    }
}

fn push_hex(bytes: &[u8], key: &mut ArrayString<56>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        key.push(char::from(HEX[usize::from(byte >> 4)]));
        key.push(char::from(HEX[usize::from(byte & 15)]));
    }
}

/// Months since January 1970 and the millisecond at which this one started, UTC.
///
/// Counts years from March, so that the leap day is the last of its year; the days before a month of such a year
/// are `(153 * month + 2) / 5`.
fn month_of(wall_ms: u64) -> (u32, u64) {
    /// Days from 0000-03-01 to 1970-01-01.
    const EPOCH_DAYS: u64 = 719_468;
    let days = wall_ms / DAY_MS + EPOCH_DAYS;
    let era_days = days % 146_097;
    let era_year = (era_days - era_days / 1_460 + era_days / 36_524 - era_days / 146_096) / 365;
    let year_days = era_days - (365 * era_year + era_year / 4 - era_year / 100);
    let month_from_march = (5 * year_days + 2) / 153;
    let month_days = year_days - (153 * month_from_march + 2) / 5;
    let year = days / 146_097 * 400 + era_year;
    let months = year * 12 + month_from_march + 2 - 1970 * 12;
    let start_ms = (wall_ms / DAY_MS - month_days) * DAY_MS;
    (months as u32, start_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_start_at_their_first_day() {
        for (wall_ms, expected) in [
            (0, (0, 0)),
            (31 * DAY_MS - 1, (0, 0)),
            (31 * DAY_MS, (1, 31 * DAY_MS)),
            // 2000-02-29 12:00 and 2000-03-01 00:00.
            (951_825_600_000, (361, 949_363_200_000)),
            (951_868_800_000, (362, 951_868_800_000)),
            // 2023-11-14 22:13:20 and 2024-12-31 23:59:59.
            (1_700_000_000_000, (646, 1_698_796_800_000)),
            (1_735_689_599_000, (659, 1_733_011_200_000)),
            (1_735_689_600_000, (660, 1_735_689_600_000)),
        ] {
            assert_eq!(month_of(wall_ms), expected, "{wall_ms}");
        }
    }

    #[test]
    fn keys_have_the_shape_of_a_client() {
        let mut keys = UniqueKeys::default();
        let v4 = ([10, 0, 0, 1], 10_911).into();
        let key = keys.make(v4, 1_700_000_000_000);
        assert_eq!(key.as_str(), "0A0000012A9F0000028647B760000000");
        let second = keys.make(v4, 1_700_000_000_000);
        assert_eq!(second.as_str(), "0A0000012A9F0000028647B760000001");
        let v6 = "[2001:db8::1]:10911".parse().expect("an address");
        assert_eq!(keys.make(v6, 0).len(), 56);
        keys.counter = u16::MAX;
        keys.make(v4, 0);
        assert!(keys.make(v4, 0).ends_with("0000"), "the counter wraps");
    }
}
