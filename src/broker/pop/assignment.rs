//! 400: the queues of a topic that a consumer is to consume, and how.
//!
//! Java's push consumer asks any one broker of its topic when it does not allocate queues by itself
//! (`clientRebalance=false`), and consumes what it is told, of all brokers. The queues of all brokers are in the route,
//! which name servers have: the question waits while the control thread gets it.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/QueryAssignmentProcessor.java`,
//! `client/.../consumer/rebalance/AllocateMessageQueueAveragely*.java`.

use super::modes::Mode;
use crate::broker::relay::{self, Asker, Purpose};
use crate::broker::{Broker, Context, Outcome, Peer};
use crate::limits::TOPIC_QUEUES_MAX as QUEUES_PER_BROKER_MAX;
use crate::protocol::bodies::{self, MessageQueue, TopicRoute, perm};
use crate::protocol::calls::CallResult;
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::response::Response;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Body of 400.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Query {
    client_id: String,
    consumer_group: String,
    message_model: Option<String>,
    strategy_name: String,
    topic: String,
}

/// Answer to 400. Without assignments a consumer keeps those that it has.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Assignments {
    #[serde(skip_serializing_if = "Option::is_none")]
    message_queue_assignments: Option<Vec<Assignment>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Assignment {
    attachments: Option<()>,
    message_queue: MessageQueue,
    mode: Mode,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strategy {
    /// `AVG`: neighbouring queues to each consumer.
    Averagely,
    /// `AVG_BY_CIRCLE`: a queue to each in turn.
    ByCircle,
}

/// A consumer that waits for the route of its topic, with what its broker knows.
#[derive(Debug)]
pub struct Waiting {
    topic: String,
    client_id: String,
    mode: Mode,
    share: i32,
    /// `None`: every consumer gets all queues.
    strategy: Option<Strategy>,
    /// The group's consumers, sorted.
    clients: Vec<String>,
}

pub fn query_assignment(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let query: Query = match bodies::decode(command.body) {
        Ok(query) => query,
        Err(error) => {
            let response = Response::error(ResponseCode::SYSTEM_ERROR, error.to_string());
            return Ok(Outcome::Reply(response));
        }
    };
    let strategy = match (query.message_model.as_deref(), query.strategy_name.as_str()) {
        (Some("BROADCASTING"), _) => None,
        (_, "AVG") => Some(Strategy::Averagely),
        (_, "AVG_BY_CIRCLE") => Some(Strategy::ByCircle),
        (_, name) => {
            tracing::debug!(group = query.consumer_group, name, "unknown strategy");
            return Ok(Outcome::Reply(answer(None)));
        }
    };
    let clients = broker.clients.client_ids(&query.consumer_group);
    if strategy.is_some() && clients.is_empty() {
        return Ok(Outcome::Reply(answer(None)));
    }
    let (mode, share) = broker.modes.get(&query.consumer_group, &query.topic);
    let waiting = Waiting {
        topic: query.topic.clone(),
        client_id: query.client_id,
        mode,
        share,
        strategy,
        clients,
    };
    let (asker, purpose) = (Asker::of(command, peer), Purpose::Assign(Box::new(waiting)));
    Ok(relay::ask_route(broker, query.topic, asker, purpose, cx))
}

fn answer(queues: Option<(BTreeSet<MessageQueue>, Mode)>) -> Response {
    let assignments = queues.map(|(queues, mode)| {
        let assignments = queues.into_iter().map(|message_queue| Assignment {
            attachments: None,
            message_queue,
            mode,
        });
        assignments.collect()
    });
    let body = bodies::encode(&Assignments {
        message_queue_assignments: assignments,
    });
    Response::with_body(body)
}

impl Waiting {
    /// The answer, once the route is there or can't be had. An error leaves the consumer what it has.
    pub fn response(&self, route: CallResult) -> Response {
        let route = match route {
            Ok(route) if route.code == 0 => route,
            Ok(route) if route.code == ResponseCode::TOPIC_NOT_EXIST.0 => return answer(None),
            Ok(route) => {
                let remark = route.remark.unwrap_or_default();
                return Response::error(ResponseCode::SYSTEM_ERROR, remark);
            }
            Err(error) => {
                let remark = format!("the route of topic[{}] is not there: {error}", self.topic);
                return Response::error(ResponseCode::SYSTEM_ERROR, remark);
            }
        };
        match bodies::decode::<TopicRoute>(&route.body) {
            Ok(route) => answer(Some((self.assigned(&self.queues_of(&route)), self.mode))),
            Err(error) => Response::error(ResponseCode::SYSTEM_ERROR, error.to_string()),
        }
    }

    /// All queues of the topic that may be read, sorted as Java does.
    fn queues_of(&self, route: &TopicRoute) -> Vec<MessageQueue> {
        let readable = route.queues.iter().filter(|q| q.perm & perm::READ != 0);
        let queues = readable.flat_map(|queues| {
            (0..queues.read_queue_nums.min(QUEUES_PER_BROKER_MAX))
                .map(|id| MessageQueue::new(&queues.broker_name, &self.topic, id))
        });
        let mut queues: Vec<MessageQueue> = queues.collect();
        queues.sort_unstable();
        queues
    }

    fn assigned(&self, queues: &[MessageQueue]) -> BTreeSet<MessageQueue> {
        let Some(strategy) = self.strategy else {
            return queues.iter().cloned().collect();
        };
        let Ok(own) = self.clients.binary_search(&self.client_id) else {
            return self.not_a_member(queues);
        };
        let count = self.clients.len();
        let of = |client: usize| strategy.allocate(queues, client, count);
        let share = usize::try_from(self.share).unwrap_or(0);
        match self.mode {
            Mode::Pull => of(own).cloned().collect(),
            Mode::Pop if self.all_pop_all() => all_of_each_broker(queues),
            Mode::Pop if count <= queues.len() => (own..=own + share)
                .flat_map(|client| of(client % count))
                .cloned()
                .collect(),
            // More consumers than queues: each has one.
            Mode::Pop => {
                let queue = queues.get(own % queues.len().max(1));
                queue.cloned().into_iter().collect()
            }
        }
    }

    fn all_pop_all(&self) -> bool {
        let share = usize::try_from(self.share).unwrap_or(0);
        share == 0 || share + 1 >= self.clients.len()
    }

    /// A consumer whose heartbeat has not come yet.
    fn not_a_member(&self, queues: &[MessageQueue]) -> BTreeSet<MessageQueue> {
        if self.mode == Mode::Pop && self.all_pop_all() {
            return all_of_each_broker(queues);
        }
        BTreeSet::new()
    }
}

/// A queue id of -1 names all queues of a broker.
fn all_of_each_broker(queues: &[MessageQueue]) -> BTreeSet<MessageQueue> {
    let all = queues.iter().map(|queue| MessageQueue {
        queue_id: -1,
        ..queue.clone()
    });
    all.collect()
}

impl Strategy {
    /// The queues of one of `count` clients.
    fn allocate(
        self,
        queues: &[MessageQueue],
        client: usize,
        count: usize,
    ) -> impl Iterator<Item = &MessageQueue> {
        let (first, end, step) = match self {
            Strategy::Averagely => {
                let (each, rest) = (queues.len() / count, queues.len() % count);
                let first = client * each + client.min(rest);
                (first, first + each + usize::from(client < rest), 1)
            }
            Strategy::ByCircle => (client, queues.len(), count),
        };
        let part = queues.get(first..end).unwrap_or_default();
        part.iter().step_by(step)
    }
}
