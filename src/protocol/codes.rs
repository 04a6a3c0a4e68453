//! Request codes, response codes.

/// Requests by number. Unknown numbers are answered `ResponseCode::REQUEST_CODE_NOT_SUPPORTED`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestCode(pub i32);

/// Answers by number (`requests.md` section 0): constants, e.g. `ResponseCode::SUCCESS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponseCode(pub i32);

impl ResponseCode {
    pub const SUCCESS: Self = Self(0);
    pub const SYSTEM_ERROR: Self = Self(1);
    pub const SYSTEM_BUSY: Self = Self(2);
    pub const REQUEST_CODE_NOT_SUPPORTED: Self = Self(3);
    pub const FLUSH_DISK_TIMEOUT: Self = Self(10);
    pub const MESSAGE_ILLEGAL: Self = Self(13);
    pub const SERVICE_NOT_AVAILABLE: Self = Self(14);
    pub const NO_PERMISSION: Self = Self(16);
    pub const TOPIC_NOT_EXIST: Self = Self(17);
    pub const PULL_NOT_FOUND: Self = Self(19);
    pub const PULL_RETRY_IMMEDIATELY: Self = Self(20);
    pub const PULL_OFFSET_MOVED: Self = Self(21);
    pub const QUERY_NOT_FOUND: Self = Self(22);
    pub const SUBSCRIPTION_PARSE_FAILED: Self = Self(23);
    pub const SUBSCRIPTION_NOT_EXIST: Self = Self(24);
    pub const SUBSCRIPTION_NOT_LATEST: Self = Self(25);
    pub const SUBSCRIPTION_GROUP_NOT_EXIST: Self = Self(26);
    pub const INVALID_PARAMETER: Self = Self(29);
    pub const CONSUMER_NOT_ONLINE: Self = Self(206);
}

impl RequestCode {
    pub const SEND_MESSAGE: Self = Self(10);
    pub const PULL_MESSAGE: Self = Self(11);
    pub const QUERY_CONSUMER_OFFSET: Self = Self(14);
    pub const UPDATE_CONSUMER_OFFSET: Self = Self(15);
    pub const UPDATE_AND_CREATE_TOPIC: Self = Self(17);
    pub const UPDATE_AND_CREATE_TOPIC_LIST: Self = Self(18);
    pub const GET_ALL_TOPIC_CONFIG: Self = Self(21);
    pub const SEARCH_OFFSET_BY_TIMESTAMP: Self = Self(29);
    pub const GET_MAX_OFFSET: Self = Self(30);
    pub const GET_MIN_OFFSET: Self = Self(31);
    pub const GET_EARLIEST_MSG_STORETIME: Self = Self(32);
    pub const VIEW_MESSAGE_BY_ID: Self = Self(33);
    pub const HEART_BEAT: Self = Self(34);
    pub const UNREGISTER_CLIENT: Self = Self(35);
    pub const GET_CONSUMER_LIST_BY_GROUP: Self = Self(38);
    pub const NOTIFY_CONSUMER_IDS_CHANGED: Self = Self(40);
    pub const CHECK_CLIENT_CONFIG: Self = Self(46);
    pub const PUT_KV_CONFIG: Self = Self(100);
    pub const GET_KV_CONFIG: Self = Self(101);
    pub const DELETE_KV_CONFIG: Self = Self(102);
    pub const REGISTER_BROKER: Self = Self(103);
    pub const UNREGISTER_BROKER: Self = Self(104);
    pub const GET_ROUTEINFO_BY_TOPIC: Self = Self(105);
    pub const GET_BROKER_CLUSTER_INFO: Self = Self(106);
    pub const UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Self = Self(200);
    pub const GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Self = Self(201);
    pub const GET_TOPIC_STATS_INFO: Self = Self(202);
    pub const WIPE_WRITE_PERM_OF_BROKER: Self = Self(205);
    pub const GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Self = Self(206);
    pub const DELETE_SUBSCRIPTIONGROUP: Self = Self(207);
    pub const GET_CONSUME_STATS: Self = Self(208);
    pub const DELETE_TOPIC_IN_BROKER: Self = Self(215);
    pub const DELETE_TOPIC_IN_NAMESRV: Self = Self(216);
    pub const REGISTER_TOPIC_IN_NAMESRV: Self = Self(217);
    pub const GET_KVLIST_BY_NAMESPACE: Self = Self(219);
    pub const GET_TOPICS_BY_CLUSTER: Self = Self(224);
    pub const GET_SYSTEM_TOPIC_LIST_FROM_NS: Self = Self(304);
    pub const SEND_MESSAGE_V2: Self = Self(310);
    pub const SEND_BATCH_MESSAGE: Self = Self(320);
    pub const QUERY_DATA_VERSION: Self = Self(322);
    pub const ADD_WRITE_PERM_OF_BROKER: Self = Self(327);
    pub const GET_TOPIC_CONFIG: Self = Self(351);
    pub const LITE_PULL_MESSAGE: Self = Self(361);
    pub const GET_BROKER_MEMBER_GROUP: Self = Self(901);
    pub const BROKER_HEARTBEAT: Self = Self(904);
}
