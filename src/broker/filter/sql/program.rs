//! The compiled form of an expression, and its evaluation.

use super::PROPERTIES_MAX;
use super::number::Number;
use crate::protocol::message::properties_of;
use std::cmp::Ordering;

/// Place of a node, of a text, of a property: below `NODES_MAX`.
pub type Place = u16;

/// A run of places in one of the program's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub start: Place,
    pub end: Place,
}

impl Run {
    fn range(self) -> std::ops::Range<usize> {
        usize::from(self.start)..usize::from(self.end)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    Contains,
    StartsWith,
    EndsWith,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Node {
    Property(Place),
    Number(Number),
    Text(Place),
    Truth(Option<bool>),
    /// Of a number; anything else is null.
    Negate(Place),
    /// A property on its own: false where it is there, since no text is a truth.
    Cast(Place),
    Not(Place),
    /// Of the nodes in the run of `operands`.
    And(Run),
    Or(Run),
    Equal(Place, Place),
    Ordered(Order, Place, Place),
    IsNull(Place),
    /// The property is one of the texts, which are sorted.
    In {
        property: Place,
        texts: Run,
    },
    Search {
        search: Search,
        is_negated: bool,
        value: Place,
        text: Place,
    },
}

/// What a node is worth.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Value<'a> {
    Null,
    Truth(bool),
    Number(Number),
    Text(&'a [u8]),
}

impl Value<'_> {
    fn from_truth(truth: Option<bool>) -> Self {
        truth.map_or(Value::Null, Value::Truth)
    }

    fn number(self) -> Option<Number> {
        match self {
            Value::Number(number) => Some(number),
            Value::Text(text) => Number::parse(text),
            Value::Null | Value::Truth(_) => None,
        }
    }
}

/// **Invariants**: every place lies within its table; a node's operands stand before it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Program {
    pub(super) nodes: Vec<Node>,
    pub(super) root: Place,
    /// Operands of AND and OR.
    pub(super) operands: Vec<Place>,
    pub(super) texts: Vec<Box<str>>,
    /// Names, sorted.
    pub(super) properties: Vec<Box<str>>,
}

/// Programs hold finite numbers only.
impl Eq for Program {}

/// The values of a program's properties in one record.
type Values<'a> = [Option<&'a [u8]>; PROPERTIES_MAX];

impl Program {
    /// Whether a stored record matches; one whose properties can't be read does not.
    pub fn matches_record(&self, record: &[u8]) -> bool {
        properties_of(record).is_ok_and(|properties| self.evaluate(properties) == Some(true))
    }

    /// The truth of the expression over encoded properties; `None` is unknown.
    pub fn evaluate(&self, properties: &[u8]) -> Option<bool> {
        let values = self.look_up(properties);
        self.truth(self.root, &values)
    }

    /// One pass over the properties; the last pair of a name counts, an empty value is none.
    fn look_up<'a>(&self, properties: &'a [u8]) -> Values<'a> {
        let mut values: Values<'a> = [None; PROPERTIES_MAX];
        for piece in properties.split(|&byte| byte == 2) {
            let Some(name_end) = piece.iter().position(|&byte| byte == 1) else {
                continue;
            };
            let (name, value) = (&piece[..name_end], &piece[name_end + 1..]);
            let known = self
                .properties
                .binary_search_by(|known| known.as_bytes().cmp(name));
            if let Ok(place) = known
                && !value.is_empty()
            {
                values[place] = Some(value);
            }
        }
        values
    }

    fn value<'a>(&'a self, place: Place, values: &Values<'a>) -> Value<'a> {
        match self.nodes[usize::from(place)] {
            Node::Property(property) => match values[usize::from(property)] {
                Some(text) => Value::Text(text),
                None => Value::Null,
            },
            Node::Number(number) => Value::Number(number),
            Node::Text(text) => Value::Text(self.texts[usize::from(text)].as_bytes()),
            Node::Negate(of) => match self.value(of, values) {
                Value::Number(number) => Value::Number(number.negated()),
                Value::Null | Value::Truth(_) | Value::Text(_) => Value::Null,
            },
            _ => Value::from_truth(self.truth(place, values)),
        }
    }

    fn truth(&self, place: Place, values: &Values<'_>) -> Option<bool> {
        match self.nodes[usize::from(place)] {
            Node::Truth(truth) => truth,
            Node::Cast(of) => match self.value(of, values) {
                Value::Null => None,
                Value::Truth(truth) => Some(truth),
                Value::Number(_) | Value::Text(_) => Some(false),
            },
            Node::Not(of) => self.truth(of, values).map(|truth| !truth),
            Node::And(run) => self.combine(run, false, values),
            Node::Or(run) => self.combine(run, true, values),
            Node::Equal(left, right) => equal(self.value(left, values), self.value(right, values)),
            Node::Ordered(order, left, right) => {
                let (left, right) = (self.value(left, values), self.value(right, values));
                let ordering = left.number()?.compare(right.number()?);
                Some(holds(order, ordering))
            }
            Node::IsNull(of) => Some(self.value(of, values) == Value::Null),
            Node::In { property, texts } => {
                let value = values[usize::from(property)]?;
                let texts = &self.texts[texts.range()];
                Some(
                    texts
                        .binary_search_by(|text| text.as_bytes().cmp(value))
                        .is_ok(),
                )
            }
            Node::Search {
                search,
                is_negated,
                value,
                text,
            } => {
                let text = self.texts[usize::from(text)].as_bytes();
                Some(found(search, is_negated, self.value(value, values), text))
            }
            Node::Property(_) | Node::Number(_) | Node::Text(_) | Node::Negate(_) => {
                unreachable!("the parser asks for truths only where there are some")
            }
        }
    }

    /// AND (`decisive` false) and OR (`decisive` true): the first decisive operand decides; otherwise any unknown one
    /// makes it unknown.
    fn combine(&self, run: Run, decisive: bool, values: &Values<'_>) -> Option<bool> {
        let mut is_known = true;
        for operand in &self.operands[run.range()] {
            match self.truth(*operand, values) {
                Some(truth) if truth == decisive => return Some(decisive),
                Some(_) => {}
                None => is_known = false,
            }
        }
        is_known.then_some(!decisive)
    }
}

/// Null on the left is unknown, on the right only it is false, on both sides true: as Apache has it.
fn equal(left: Value<'_>, right: Value<'_>) -> Option<bool> {
    match (left, right) {
        (Value::Null, Value::Null) => Some(true),
        (Value::Null, _) => None,
        (_, Value::Null) => Some(false),
        (Value::Text(left), Value::Text(right)) => Some(left == right),
        (Value::Truth(left), Value::Truth(right)) => Some(left == right),
        (Value::Truth(truth), Value::Text(text)) | (Value::Text(text), Value::Truth(truth)) => {
            Some(text.eq_ignore_ascii_case(b"true") == truth)
        }
        (Value::Truth(_), Value::Number(_)) | (Value::Number(_), Value::Truth(_)) => Some(false),
        (Value::Number(_), _) | (_, Value::Number(_)) => {
            Some(left.number()?.compare(right.number()?) == Ordering::Equal)
        }
    }
}

fn holds(order: Order, ordering: Ordering) -> bool {
    match order {
        Order::Less => ordering.is_lt(),
        Order::LessEqual => ordering.is_le(),
        Order::Greater => ordering.is_gt(),
        Order::GreaterEqual => ordering.is_ge(),
    }
}

/// Never unknown: what is no text, and an empty text to look for, give false, negated or not, as Apache has it.
fn found(search: Search, is_negated: bool, value: Value<'_>, text: &[u8]) -> bool {
    let Value::Text(value) = value else {
        return false;
    };
    if text.is_empty() {
        return false;
    }
    let is_found = match search {
        Search::Contains => memchr::memmem::find(value, text).is_some(),
        Search::StartsWith => value.starts_with(text),
        Search::EndsWith => value.ends_with(text),
    };
    is_found != is_negated
}
