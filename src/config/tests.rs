use super::*;
use proptest::prelude::*;

/// A machine of four processors at 10.0.0.5, with a folder for the configuration file and the store.
struct Case {
    directory: tempfile::TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

impl Case {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            variables: Vec::new(),
        }
    }

    fn load(&self, text: &str, flags: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let path = self.directory.path().join("broker.conf");
        std::fs::write(&path, text).unwrap();
        let mut all: Vec<_> = flags
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        if !all.iter().any(|(name, _)| name == "storePathRootDir")
            && !text.contains("storePathRootDir")
        {
            let root = self.directory.path().join("store");
            all.push((
                "storePathRootDir".to_owned(),
                root.to_string_lossy().into_owned(),
            ));
        }
        let variable = |name: &str| {
            let found = self.variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let machine = Machine {
            variable: &variable,
            interfaces: vec![Interface {
                name: "eth0".to_owned(),
                ip: [10, 0, 0, 5].into(),
            }],
            resolve: &|_| None,
            processors: 4,
        };
        Config::load_on(Some(&path), &all, &machine).map_err(|mut error| {
            let path = path.to_string_lossy();
            error.text = error.text.replace(&*path, "broker.conf");
            error
        })
    }
}

fn load(text: &str, flags: &[(&str, &str)]) -> Result<Config, String> {
    Case::new().load(text, flags).map_err(|error| error.text)
}

fn refused(text: &str, expected: &str) {
    let error = load(text, &[]).map(|_| ()).unwrap_err();
    assert!(error.starts_with(expected), "{text:?}: {error}");
}

#[test]
fn defaults_are_those_of_the_table_and_good() {
    let config = load("", &[]).unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert_eq!((config.shards, config.topic_queues()), (4, 2));
    assert_eq!(config.shard_address(3).to_string(), "127.0.0.1:10941");
    assert!(config.embedded_namesrv && config.namesrv_addresses.is_empty());
    assert_eq!((config.write_mode(), config.cores.len()), (None, 0));
    let mut names: Vec<_> = keys::all().map(|key| key.name).collect();
    names.sort_unstable();
    assert!(
        names.windows(2).all(|two| two[0] != two[1]),
        "a key is there twice"
    );
    for key in keys::all() {
        assert!(
            WITHOUT_EFFECT.binary_search(&key.name).is_err(),
            "{}",
            key.name
        );
        let checked = if key.default.is_empty() {
            Ok(String::new())
        } else {
            values::check(key.kind, key.default)
        };
        assert_eq!(checked.as_deref(), Ok(key.default), "{}", key.name);
    }
    assert!(WITHOUT_EFFECT.is_sorted());
}

/// The file that Apache ships, and what its users write.
#[test]
fn a_stock_broker_conf_is_good() {
    let stock = "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n\
        fileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n";
    let config = load(stock, &[("shards", "1")]).unwrap();
    assert_eq!(config.shard_name(0), "broker-a");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let users = "brokerIP1=10.0.0.5\nbindAddress=0.0.0.0\nnamesrvAddr=ns1:9876;ns2:9876\nlistenPort=20911\n\
        mapedFileSizeCommitLog=536870912\nmapedFileSizeConsumeQueue=3000000\nmaxMessageSize=65536\nautoCreateTopicEnable=false\n\
        sendMessageThreadPoolNums=128\nuseReentrantLockWhenPutMessage=true\ntransientStorePoolEnable=TRUE\n";
    let config = load(users, &[("shards", "1")]).unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert_eq!(
        config.notes,
        [
            "keys of Apache RocketMQ without an effect here: sendMessageThreadPoolNums, transientStorePoolEnable, \
            useReentrantLockWhenPutMessage"
        ]
    );
    assert_eq!(config.integer("mappedFileSizeCommitLog"), 536_870_912);
    assert_eq!(config.integer("mappedFileSizeConsumeQueue"), 3_000_000);
    assert!(!config.bool("autoCreateTopicEnable") && !config.embedded_namesrv);
    assert_eq!(config.namesrv_addresses, ["ns1:9876", "ns2:9876"]);
    assert_eq!(config.shard_address(0).to_string(), "10.0.0.5:20911");
}

#[test]
fn flags_win_over_the_file_and_names_over_their_aliases() {
    let text = "# a comment\nlistenPort=20911\nshards = 2\nmapedFileSizeCommitLog=262144\nbrokerName=b\nmaxMessageSize=1000\n";
    let config = load(text, &[("listenPort", "30911")]).unwrap();
    assert_eq!(
        (config.shard_port(0), config.shard_port(1)),
        (30_911, 30_921)
    );
    assert_eq!(config.integer("mappedFileSizeCommitLog"), 262_144);
    assert_eq!(config.shard_name(1), "b-1");
    assert!(config.shard_root(1).ends_with("store/shard-1"));
    assert!(config.commit_log(1).ends_with("store/shard-1/commitlog"));
    let both = "mapedFileSizeCommitLog=262144\nmappedFileSizeCommitLog=524288\n";
    assert_eq!(
        load(both, &[]).unwrap().integer("mappedFileSizeCommitLog"),
        524_288
    );
}

/// Source of the comment inside a value: apache/rocketmq#6631, rocketmq-docker#3.
#[test]
fn a_bad_value_is_named_with_file_line_and_range() {
    refused(
        "\nlistenPort=x\n",
        "broker.conf line 2: listenPort = \"x\": allowed are 1 to 65534",
    );
    refused(
        "# one\n\n# two\nbrokerName = a\\\n  b\nflushDiskType=MAYBE\n",
        "broker.conf line 6: flushDiskType = \"MAYBE\": allowed are ASYNC_FLUSH, SYNC_FLUSH",
    );
    refused(
        "brokerIP1=10.0.0.1 # eth0\n",
        "broker.conf line 1: brokerIP1 = \"10.0.0.1 # eth0\": there is a comment in the value; put it on a line of its own",
    );
    refused(
        "listenPort=10911 // default\n",
        "broker.conf line 1: listenPort",
    );
    refused(
        "shards=\n",
        "broker.conf line 1: shards = \"\": it is empty",
    );
    refused(
        "brokerName=a b\n",
        "broker.conf line 1: brokerName = \"a b\": it contains ' '",
    );
    refused(
        "deleteWhen=4am\n",
        "broker.conf line 1: deleteWhen = \"4am\": allowed are hours",
    );
    refused(
        "fileReservedTime=0\n",
        "broker.conf line 1: fileReservedTime",
    );
    refused(
        "mappedFileSizeConsumeQueue=30\n",
        "mappedFileSizeConsumeQueue = 30: it is no multiple of 20",
    );
    refused(
        "maxMessageSize=4194305\n",
        "broker.conf line 1: maxMessageSize = \"4194305\": allowed are 1 to 4194304",
    );
    refused(
        "brokerIP1=nowhere\nbindAddress=0.0.0.0\n",
        "brokerIP1 = \"nowhere\": this host name can't be resolved",
    );
    refused("key=\\u12\n", "broker.conf line 1:");
}

#[test]
fn mistakes_on_the_command_line_are_bad_usage() {
    let case = Case::new();
    let error = case
        .load("", &[("listenPort", "x")])
        .map(|_| ())
        .unwrap_err();
    assert_eq!(
        error.text,
        "--listenPort: listenPort = \"x\": allowed are 1 to 65534"
    );
    assert!(error.is_usage);
    let error = case.load("listenPort=x", &[]).map(|_| ()).unwrap_err();
    assert!(!error.is_usage);
    let absent = Path::new("/nowhere/broker.conf");
    let error = Config::load(Some(absent), &[]).map(|_| ()).unwrap_err();
    assert!(error.text.starts_with("/nowhere/broker.conf: "), "{error}");
}

/// To start without what these ask for would be worse than not to start.
#[test]
fn promises_that_can_not_be_kept_are_refused() {
    refused(
        "brokerRole=SLAVE\n",
        "broker.conf line 1: brokerRole = \"SLAVE\": this version takes only ASYNC_MASTER and SYNC_MASTER: there are no replicas",
    );
    for line in [
        "brokerId=1",
        "aclEnable=true",
        "authenticationEnabled=true",
        "enableDLegerCommitLog=true",
        "storeType=defaultRocksDB",
        "abortFile=/x",
    ] {
        refused(line, "broker.conf line 1: ");
    }
    let config = load("brokerRole=SYNC_MASTER", &[]).unwrap();
    assert!(config.warnings[0].contains("acknowledged as by ASYNC_MASTER"));
    assert!(load("aclEnable=FALSE\nbrokerId=0\nstoreType=default\n", &[]).is_ok());
}

#[test]
fn unknown_keys_are_warnings() {
    let config = load("listenPrt=1\nzzz=1 # x\nmsgTraceTopicName=X\n", &[]).unwrap();
    let warnings: Vec<_> = config
        .warnings
        .iter()
        .map(|warning| warning.split_once("line").unwrap().1)
        .collect();
    assert_eq!(
        warnings,
        [
            " 1: unknown key \"listenPrt\" is ignored; is it listenPort?",
            " 2: unknown key \"zzz\" is ignored"
        ]
    );
    assert_eq!(config.notes.len(), 1, "{:?}", config.notes);
    let twice = load("listenPort=1\nshards=2\nlistenPort=2\nshards=2\n", &[]).unwrap();
    assert_eq!(twice.integer("listenPort"), 2);
    assert_eq!(twice.warnings.len(), 1, "{:?}", twice.warnings);
    assert!(twice.warnings[0].contains("listenPort is given twice, \"2\" counts"));
}

#[test]
fn files_of_all_editors_are_read() {
    let windows = "\u{feff}brokerName=x\r\nlistenPort : 20911\r\n! a comment\r\nshards\t2\r\n";
    let config = load(windows, &[]).unwrap();
    assert_eq!(
        (config.shard_name(1), config.shard_port(1)),
        ("x-1".into(), 20_921)
    );
    let case = Case::new();
    let path = case.directory.path().join("latin");
    std::fs::write(&path, b"a=1\nb=\xe9\n").unwrap();
    let error = Config::load(Some(&path), &[]).map(|_| ()).unwrap_err();
    assert!(
        error.text.ends_with("latin line 2: it is not UTF-8"),
        "{error}"
    );
}

#[test]
fn the_environment_counts_where_nothing_else_is_said() {
    let mut case = Case::new();
    case.variables = vec![
        ("NAMESRV_ADDR", "ns:9876"),
        ("JAVA_OPT_EXT", "-Xmx1g"),
        ("ROCKETMQ_HOME", ""),
    ];
    let config = case.load("", &[]).unwrap();
    assert_eq!(config.namesrv_addresses, ["ns:9876"]);
    assert!(!config.embedded_namesrv);
    assert_eq!(
        config.notes,
        ["environment variable JAVA_OPT_EXT has no effect: there is no Java here"]
    );
    assert_eq!(
        case.load("namesrvAddr=other:1", &[])
            .unwrap()
            .namesrv_addresses,
        ["other:1"]
    );
    assert!(case.load("namesrvAddr=", &[]).unwrap().embedded_namesrv);
    case.variables = vec![("NAMESRV_ADDR", "nonsense")];
    let error = case.load("", &[]).map(|_| ()).unwrap_err();
    assert!(
        error
            .text
            .starts_with("environment variable NAMESRV_ADDR: namesrvAddr"),
        "{error}"
    );
}

#[test]
fn the_name_server_in_this_process_is_on_unless_there_is_another() {
    for (text, expected) in [
        ("", true),
        ("namesrvAddr=a:1", false),
        ("namesrvAddr=a:1\nembeddedNamesrv=true", true),
        ("embeddedNamesrv=false", false),
        ("embeddedNamesrv=auto", true),
    ] {
        assert_eq!(
            load(text, &[]).unwrap().embedded_namesrv,
            expected,
            "{text}"
        );
    }
    let none = load("embeddedNamesrv=false", &[]).unwrap();
    assert!(none.warnings[0].contains("there is no name server"));
}

#[test]
fn ports_have_to_fit() {
    refused(
        "listenPort=65534\nshards=2\n",
        "listenPort = 65534: the last of 2 shards would listen on 65544; with so many it is at most 65524",
    );
    assert!(load("listenPort=65534\nshards=1\n", &[]).is_ok());
    refused(
        "listenPort=9866\nshards=2\n",
        "namesrvListenPort = 9876: shard 1 listens there",
    );
    assert!(load("listenPort=9866\nshards=2\nnamesrvAddr=a:1\n", &[]).is_ok());
}

#[test]
fn the_store_and_its_shards() {
    let case = Case::new();
    let root = case.directory.path().join("store");
    std::fs::create_dir_all(root.join("commitlog")).unwrap();
    assert_eq!(case.load("", &[]).unwrap().shards, 1, "a stock store");
    let error = case.load("shards=2", &[]).map(|_| ()).unwrap_err();
    assert!(
        error.text.contains("holds the store of one shard"),
        "{error}"
    );
    let config = case
        .load(
            "storePathCommitLog=/log\nstorePathConsumeQueue=/queues",
            &[],
        )
        .unwrap();
    assert_eq!(config.commit_log(0), Path::new("/log"));
    assert_eq!(config.consume_queue(0), Path::new("/queues"));
    refused(
        "storePathCommitLog=/log\nshards=2",
        "storePathCommitLog = \"/log\": 2 shards",
    );
    let small = load("mappedFileSizeCommitLog=65536\nmaxMessageSize=1", &[]).unwrap();
    assert!(small.warnings[0].contains("don't fit a segment"));
}

#[test]
fn processors_are_shared_out() {
    let config = load("cores=1-2\nshards=3", &[]).unwrap();
    let cores: Vec<_> = (0..3)
        .map(|shard| config.core(shard, &[0, 1, 2, 3]))
        .collect();
    assert_eq!(cores, [Some(1), Some(2), Some(1)]);
    assert_eq!(config.core(0, &[0]), None, "not allowed");
    let config = load("shards=3", &[]).unwrap();
    let cores: Vec<_> = (0..3).map(|shard| config.core(shard, &[5, 7])).collect();
    assert_eq!(cores, [Some(5), Some(7), Some(5)]);
    assert_eq!(config.core(0, &[]), None);
}

#[test]
fn queues_of_new_topics_are_divided() {
    for (shards, all, expected) in [("1", "8", 8), ("2", "8", 4), ("3", "8", 2), ("9", "8", 1)] {
        let config = load("", &[("shards", shards), ("defaultTopicQueueNums", all)]).unwrap();
        assert_eq!(config.topic_queues(), expected, "{shards}");
    }
}

#[test]
fn addresses_of_containers_are_warned_of() {
    let config = load("bindAddress=0.0.0.0\nbrokerIP1=172.17.0.3", &[]).unwrap();
    assert!(
        config.warnings[0]
            .contains("clients are told 172.17.0.3, an address of a container network")
    );
    let config = load("bindAddress=0.0.0.0", &[]).unwrap();
    assert_eq!(config.advertised.to_string(), "10.0.0.5");
}

fn value_of(key: &keys::Key) -> BoxedStrategy<String> {
    match key.kind {
        Kind::Bool => prop::sample::select(vec!["true", "false"])
            .prop_map(str::to_owned)
            .boxed(),
        Kind::Integer { min, max } => (min..=max).prop_map(|n| n.to_string()).boxed(),
        Kind::OneOf(words) => prop::sample::select(words.to_vec())
            .prop_map(str::to_owned)
            .boxed(),
        Kind::Name => "[a-z][a-z0-9-]{0,12}".boxed(),
        Kind::Addresses => "([a-z]{1,5}:[1-9][0-9]{0,3};){0,2}[a-z]{1,5}:1".boxed(),
        Kind::Path => "/[a-z=:\\\\ ]{0,9}[a-z]".boxed(),
        _ => Just(key.default.to_owned()).boxed(),
    }
}

proptest! {
    /// What is printed is a configuration that means the same.
    #[test]
    fn a_printed_configuration_is_read_back(
        seed in prop::collection::vec(any::<prop::sample::Index>(), 6),
        values in keys::all().map(|key| value_of(&key)).collect::<Vec<_>>(),
    ) {
        let all: Vec<_> = keys::all().collect();
        let chosen = seed.iter().map(|index| index.index(all.len()));
        let flags: Vec<(&str, &str)> = chosen
            .filter(|at| all[*at].effect == Effect::Full && all[*at].name != "storePathRootDir")
            .map(|at| (all[at].name, values[at].as_str()))
            .collect();
        let case = Case::new();
        if let Ok(config) = case.load("", &flags) {
            let printed = config.print();
            let again = case.load(&printed, &[]).map_err(|e| TestCaseError::fail(e.text))?;
            prop_assert_eq!(&again.values, &config.values);
            prop_assert_eq!(again.print(), printed);
        }
    }

    /// No text makes the reader fail in any other way than with an error.
    #[test]
    fn any_file_is_read_or_refused(text in "([a-zA-Z]{0,12}[=: ]?\\PC{0,20}[\r\n]{0,2}){0,8}") {
        let _ = load(&text, &[]);
    }
}
