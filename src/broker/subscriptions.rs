//! Subscriptions that pulls bring along (flag 4), compiled once.

use super::filter::{Filter, FilterError, Subscription};
use std::collections::HashMap;
use std::rc::Rc;

/// Compiled expressions kept; all are dropped when there are more, since clients can send any number.
const KEPT_MAX: usize = 4096;

#[derive(Debug, Default)]
pub struct Subscriptions {
    by_topic: HashMap<Box<str>, Vec<Rc<Subscription>>, ahash::RandomState>,
    count: usize,
}

impl Subscriptions {
    /// The subscription of this text. No allocation where it was seen before.
    pub fn get(
        &mut self,
        topic: &str,
        expression: &str,
        kind: &str,
    ) -> Result<Rc<Subscription>, FilterError> {
        let known = self.by_topic.get(topic).and_then(|list| {
            list.iter()
                .find(|s| s.expression == expression && s.expression_type == kind)
        });
        if let Some(known) = known {
            return Ok(Rc::clone(known));
        }
        let subscription = Rc::new(Subscription {
            topic: topic.to_owned(),
            expression: expression.to_owned(),
            expression_type: kind.to_owned(),
            version: 0,
            filter: Filter::parse(expression, kind)?,
        });
        if self.count >= KEPT_MAX {
            self.by_topic.clear();
            self.count = 0;
        }
        self.count += 1;
        self.by_topic
            .entry(topic.into())
            .or_default()
            .push(Rc::clone(&subscription));
        Ok(subscription)
    }
}
