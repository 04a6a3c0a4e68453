//! Random steps against a model of the table, and random requests.

use super::*;

/// What may happen to the table, over few names so that they meet.
#[derive(Clone, Debug)]
enum Step {
    Register {
        broker: u8,
        id: u8,
        address: u8,
        source: u8,
        topics: u8,
        version: u8,
        is_shard: bool,
    },
    Unregister {
        broker: u8,
        address: u8,
    },
    Close {
        source: u8,
    },
    Wait {
        seconds: u8,
    },
    Delete {
        topic: u8,
    },
    Wipe {
        broker: u8,
        is_given: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3_u8, 0..3_u8, 0..5_u8, 0..4_u8, 0..16_u8, 0..3_u8, any::<bool>()).prop_map(
            |(broker, id, address, source, topics, version, is_shard)| Step::Register {
                broker, id, address, source, topics, version, is_shard
            }
        ),
        1 => (0..3_u8, 0..5_u8).prop_map(|(broker, address)| Step::Unregister { broker, address }),
        1 => (0..4_u8).prop_map(|source| Step::Close { source }),
        1 => (1..100_u8).prop_map(|seconds| Step::Wait { seconds }),
        1 => (0..4_u8).prop_map(|topic| Step::Delete { topic }),
        1 => (0..3_u8, any::<bool>()).prop_map(|(broker, is_given)| Step::Wipe { broker, is_given }),
    ]
}

/// A broker of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Modelled {
    address: String,
    source: Source,
    until_seconds: u64,
    version: DataVersion,
}

/// The model: who is there by name and id, and which topic is at which broker.
#[derive(Default)]
struct Model {
    members: BTreeMap<(String, i64), Modelled>,
    pairs: BTreeSet<(String, String)>,
}

impl Model {
    fn keep(&mut self, is_kept: impl Fn(&(String, i64), &Modelled) -> bool) {
        self.members.retain(|key, member| is_kept(key, member));
        let members = &self.members;
        self.pairs
            .retain(|(_, broker)| members.keys().any(|(name, _)| name == broker));
    }

    /// False where it is refused.
    fn register(
        &mut self,
        broker: &Broker<'_>,
        table: &TopicTable,
        source: Source,
        seconds: u64,
    ) -> bool {
        let key = (broker.name.to_owned(), broker.id);
        let is_shard = matches!(source, Source::Shard(_));
        let known = self.members.get(&key).cloned();
        if table.topic_config_table.len() == 1 && !is_shard && known.is_none() {
            return false;
        }
        self.members.retain(|(name, id), member| {
            name != broker.name || *id == broker.id || member.address != broker.address
        });
        let member = Modelled {
            address: broker.address.to_owned(),
            source,
            until_seconds: seconds + 120,
            version: table.data_version,
        };
        self.members.insert(key, member);
        if broker.id != 0 {
            return true;
        }
        let is_same =
            known.is_some_and(|k| k.address == broker.address && k.version == table.data_version);
        if is_shard && !is_same {
            self.pairs.retain(|(_, name)| name != broker.name);
        }
        for topic in table.topic_config_table.keys() {
            self.pairs.insert((topic.clone(), broker.name.to_owned()));
        }
        true
    }
}

proptest! {
    /// After every step the indices agree, and brokers, deadlines and topics are those of the model.
    #[test]
    fn table_follows_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let (mut server, mut model, mut seconds) = (server(), Model::default(), 0_u64);
        for step in steps {
            match step {
                Step::Register { broker: name, id, address, source, topics, version, is_shard } => {
                    let (name, address) = (format!("b{name}"), format!("10.0.0.{address}:1"));
                    let picked = (0..4).filter(|bit| topics >> bit & 1 == 1).map(|bit| format!("t{bit}"));
                    let picked: Vec<String> = picked.collect();
                    let picked: Vec<(&str, u32)> = picked.iter().map(|t| (t.as_str(), 6)).collect();
                    let table = table(i64::from(version), &picked);
                    let source = if is_shard { Source::Shard(u16::from(source)) } else { Source::Connection(u64::from(source)) };
                    let broker = broker(&name, i64::from(id), &address);
                    let result = server.register(&broker, &table, source, at(seconds * 1000));
                    prop_assert_eq!(result.is_ok(), model.register(&broker, &table, source, seconds));
                }
                Step::Unregister { broker, address } => {
                    let (name, address) = (format!("b{broker}"), format!("10.0.0.{address}:1"));
                    ask(&mut server, 104, &[("brokerName", &name), ("brokerAddr", &address)], b"");
                    model.keep(|(n, _), m| *n != name || m.address != address);
                }
                Step::Close { source } => {
                    let source = Source::Connection(u64::from(source));
                    server.on_closed(source);
                    model.keep(|_, m| m.source != source);
                }
                Step::Wait { seconds: more } => {
                    seconds += u64::from(more);
                    server.expire(at(seconds * 1000));
                    model.keep(|_, m| m.until_seconds > seconds);
                }
                Step::Delete { topic } => {
                    let topic = format!("t{topic}");
                    ask(&mut server, 216, &[("topic", &topic)], b"");
                    model.pairs.retain(|(t, _)| *t != topic);
                }
                Step::Wipe { broker, is_given } => {
                    let name = format!("b{broker}");
                    let code = if is_given { 327 } else { 205 };
                    ask(&mut server, code, &[("brokerName", &name)], b"");
                }
            }
            server.routes.check();
            let mut there = BTreeMap::new();
            for (name, group) in &server.routes.groups {
                for (id, member) in &group.members {
                    there.insert((name.to_string(), *id), member.address.clone());
                }
            }
            let expected = model.members.iter().map(|(key, m)| (key.clone(), m.address.clone()));
            prop_assert_eq!(there, expected.collect::<BTreeMap<_, _>>());
            let next = model.members.values().map(|m| m.until_seconds * 1_000_000).min();
            prop_assert_eq!(server.next_expiry(), next);
            let mut pairs = BTreeSet::new();
            for topic in server.routes.topics_with_flag(|_| true) {
                pairs.extend(perms(&server, &topic).into_iter().map(|(b, _)| (topic.clone(), b)));
            }
            prop_assert_eq!(&pairs, &model.pairs);
        }
    }
}

/// Fields that some request needs, with values that mean something and others.
fn any_fields() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    const NAMES: [&str; 12] = [
        "topic",
        "brokerName",
        "brokerAddr",
        "clusterName",
        "cluster",
        "brokerId",
        "namespace",
        "key",
        "value",
        "compressed",
        "bodyCrc32",
        "heartbeatTimeoutMillis",
    ];
    const VALUES: [&str; 10] = [
        "",
        "0",
        "1",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "true",
        "b",
        "T",
        "\u{1F600}",
    ];
    let field = (0..NAMES.len(), 0..VALUES.len()).prop_map(|(n, v)| (NAMES[n], VALUES[v]));
    prop::collection::vec(field, 0..16)
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let registration = table(1, &[("T", 6), ("U", u32::MAX)]).encode_registration();
    prop_oneof![
        Just(Vec::new()),
        Just(registration),
        prop::collection::vec(any::<u8>(), 0..64),
        "[{}\\[\\]\":,a-z0-9-]{0,40}".prop_map(String::into_bytes),
    ]
}

proptest! {
    /// Whatever is asked is answered, and the indices agree afterwards.
    #[test]
    fn any_request_is_answered(
        requests in prop::collection::vec(
            (prop_oneof![Just(103), 100..107, 200..225, 300..328, 900..905, any::<i32>()], any_fields(), any_body(), any::<u32>()),
            1..20,
        ),
    ) {
        let mut server = server_with_broker();
        for (code, fields, body, milliseconds) in requests {
            let now = at(u64::from(milliseconds));
            ask_as(&mut server, 479, code, &fields, &body, now);
            server.expire(now);
            server.take_effects();
            server.routes.check();
        }
    }
}
