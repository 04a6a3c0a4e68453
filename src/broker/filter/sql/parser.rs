//! Tokens to nodes.
//!
//! ```text
//! or         = and { OR and }
//! and        = equality { AND equality }
//! equality   = comparison { ( "=" | "<>" ) comparison | IS [ NOT ] NULL }
//! comparison = unary { ( "<" | "<=" | ">" | ">=" ) unary
//!                    | [ NOT ] ( BETWEEN unary AND unary | IN "(" text { "," text } ")"
//!                              | ( CONTAINS | STARTSWITH | ENDSWITH ) text ) }
//! unary      = ( "+" | "-" | NOT ) unary | primary
//! primary    = text | number | TRUE | FALSE | NULL | name | "(" or ")"
//! ```
//!
//! So NOT binds closer than a comparison: `NOT a > 4` is refused, `NOT (a > 4)` is meant.

use super::lexer::{Keyword, Lexed, Lexer, Symbol, Token, error_at};
use super::number::Number;
use super::program::{Node, Order, Place, Program, Run, Search};
use super::{DEPTH_MAX, NODES_MAX, PROPERTIES_MAX, SqlError};
use std::cmp::Ordering;

/// Nodes above one another; chains such as `a IS NULL IS NULL` are high without parentheses. Evaluation recurses.
const HEIGHT_MAX: u16 = 4 * DEPTH_MAX as u16;

/// What an operand may be used for.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Property(Place),
    Number(Number),
    Text,
    /// TRUE, FALSE or NULL as written.
    Constant(Option<bool>),
    /// A comparison or a combination of such.
    Condition,
    /// A negated number or property.
    Signed,
}

/// A part of the expression, parsed.
#[derive(Clone, Copy)]
struct Operand {
    place: Place,
    kind: Kind,
    /// In the source, in bytes.
    start: usize,
    end: usize,
}

type Parsed = Result<Operand, SqlError>;

struct Parser<'a> {
    source: &'a str,
    lexer: Lexer<'a>,
    token: Lexed<'a>,
    depth: u32,
    program: Program,
    heights: Vec<u16>,
}

pub fn parse(source: &str) -> Result<Program, SqlError> {
    let mut lexer = Lexer::new(source);
    let token = lexer.next()?;
    let mut parser = Parser {
        source,
        lexer,
        token,
        depth: 0,
        program: Program::default(),
        heights: Vec::new(),
    };
    let root = parser.or()?;
    if parser.token.token != Token::End {
        return Err(parser.unexpected("expected the end, AND or OR"));
    }
    let root = parser.condition(root)?;
    let mut program = parser.program;
    program.root = root.place;
    program.sort_properties();
    Ok(program)
}

impl<'a> Parser<'a> {
    // ---- tokens ----

    fn advance(&mut self) -> Result<(), SqlError> {
        self.token = self.lexer.next()?;
        Ok(())
    }

    fn is_keyword(&self, keyword: Keyword) -> bool {
        self.token.token == Token::Keyword(keyword)
    }

    fn take_keyword(&mut self, keyword: Keyword) -> Result<bool, SqlError> {
        let is_there = self.is_keyword(keyword);
        if is_there {
            self.advance()?;
        }
        Ok(is_there)
    }

    fn expect(&mut self, token: Token<'_>, reason: &str) -> Result<(), SqlError> {
        if self.token.token != token {
            return Err(self.unexpected(reason));
        }
        self.advance()
    }

    fn unexpected(&self, reason: &str) -> SqlError {
        error_at(self.source, self.token.start, self.token.end, reason)
    }

    fn refuse(&self, operand: Operand, reason: &str) -> SqlError {
        error_at(self.source, operand.start, operand.end, reason)
    }

    /// A text, which is the only thing that IN and the searches take.
    fn text(&mut self) -> Result<String, SqlError> {
        let Token::Text(text) = &mut self.token.token else {
            return Err(self.unexpected("expected a text in single quotes"));
        };
        let text = std::mem::take(text);
        self.advance()?;
        Ok(text)
    }

    // ---- nodes ----

    /// Adds a node over the source from `start` to the token at hand.
    fn add(&mut self, node: Node, kind: Kind, start: usize, over: &[Place]) -> Parsed {
        let height = over
            .iter()
            .map(|place| self.heights[usize::from(*place)])
            .max();
        let height = height.map_or(0, |height| height + 1);
        let nodes = &mut self.program.nodes;
        if nodes.len() >= NODES_MAX || height > HEIGHT_MAX {
            let reason = format!(
                "the expression has more than {NODES_MAX} parts, or {HEIGHT_MAX} on top of one another,"
            );
            return Err(error_at(
                self.source,
                self.token.start,
                self.token.end,
                reason,
            ));
        }
        let place = nodes.len() as Place;
        nodes.push(node);
        self.heights.push(height);
        let end = self.token.start.max(start);
        let end = start + self.source[start..end].trim_end().len();
        Ok(Operand {
            place,
            kind,
            start,
            end,
        })
    }

    /// The operand as a condition.
    fn condition(&mut self, operand: Operand) -> Parsed {
        match operand.kind {
            Kind::Condition | Kind::Constant(_) => Ok(operand),
            Kind::Property(_) => {
                let node = Node::Cast(operand.place);
                self.add(node, Kind::Condition, operand.start, &[operand.place])
            }
            Kind::Number(_) | Kind::Text | Kind::Signed => {
                Err(self.refuse(operand, "expected a condition"))
            }
        }
    }

    /// AND or OR of the operands; a single one stays as it is.
    fn combine(&mut self, operands: &[Operand], node: fn(Run) -> Node) -> Parsed {
        let first = operands[0];
        if operands.len() == 1 {
            return Ok(first);
        }
        let start = self.program.operands.len() as Place;
        let mut places = Vec::with_capacity(operands.len());
        for operand in operands {
            places.push(self.condition(*operand)?.place);
        }
        self.program.operands.extend(&places);
        let end = self.program.operands.len() as Place;
        self.add(
            node(Run { start, end }),
            Kind::Condition,
            first.start,
            &places,
        )
    }

    /// A place in the table of texts; the expression's length bounds it.
    fn add_text(&mut self, text: String) -> Place {
        self.program.texts.push(text.into());
        (self.program.texts.len() - 1) as Place
    }

    fn property(&mut self, name: &str) -> Result<Place, SqlError> {
        let known = self
            .program
            .properties
            .iter()
            .position(|known| **known == *name);
        if let Some(place) = known {
            return Ok(place as Place);
        }
        if self.program.properties.len() >= PROPERTIES_MAX {
            let reason = format!("more than {PROPERTIES_MAX} different properties");
            return Err(self.unexpected(&reason));
        }
        self.program.properties.push(name.into());
        Ok((self.program.properties.len() - 1) as Place)
    }

    // ---- grammar ----

    fn or(&mut self) -> Parsed {
        let mut operands = vec![self.and()?];
        while self.take_keyword(Keyword::Or)? {
            operands.push(self.and()?);
        }
        self.combine(&operands, Node::Or)
    }

    fn and(&mut self) -> Parsed {
        let mut operands = vec![self.equality()?];
        while self.take_keyword(Keyword::And)? {
            operands.push(self.equality()?);
        }
        self.combine(&operands, Node::And)
    }

    fn equality(&mut self) -> Parsed {
        let mut left = self.comparison()?;
        loop {
            left = match self.token.token {
                Token::Symbol(symbol @ (Symbol::Equal | Symbol::NotEqual)) => {
                    self.advance()?;
                    let right = self.comparison()?;
                    self.equal(left, right, symbol == Symbol::NotEqual)?
                }
                Token::Keyword(Keyword::Is) => {
                    self.advance()?;
                    let is_negated = self.take_keyword(Keyword::Not)?;
                    self.expect(Token::Keyword(Keyword::Null), "expected NULL or NOT NULL")?;
                    let node = Node::IsNull(left.place);
                    let is_null = self.add(node, Kind::Condition, left.start, &[left.place])?;
                    self.negate_if(is_negated, is_null)?
                }
                _ => return Ok(left),
            };
        }
    }

    fn equal(&mut self, left: Operand, right: Operand, is_negated: bool) -> Parsed {
        for operand in [left, right] {
            if operand.kind == Kind::Constant(None) {
                return Err(self.refuse(operand, "only IS NULL and IS NOT NULL compare with NULL"));
            }
        }
        let is_other = matches!(right.kind, Kind::Number(_) | Kind::Text);
        if matches!(left.kind, Kind::Constant(_)) && is_other {
            return Err(self.refuse(right, "TRUE and FALSE compare with no other constant"));
        }
        let node = Node::Equal(left.place, right.place);
        let places = [left.place, right.place];
        let equal = self.add(node, Kind::Condition, left.start, &places)?;
        self.negate_if(is_negated, equal)
    }

    fn negate_if(&mut self, is_negated: bool, condition: Operand) -> Parsed {
        if !is_negated {
            return Ok(condition);
        }
        let node = Node::Not(condition.place);
        self.add(node, Kind::Condition, condition.start, &[condition.place])
    }

    fn comparison(&mut self) -> Parsed {
        let mut left = self.unary()?;
        loop {
            let order = match self.token.token {
                Token::Symbol(Symbol::Less) => Order::Less,
                Token::Symbol(Symbol::LessEqual) => Order::LessEqual,
                Token::Symbol(Symbol::Greater) => Order::Greater,
                Token::Symbol(Symbol::GreaterEqual) => Order::GreaterEqual,
                Token::Keyword(Keyword::Not) => {
                    self.advance()?;
                    left = self.predicate(left, true)?;
                    continue;
                }
                Token::Keyword(
                    Keyword::Between
                    | Keyword::In
                    | Keyword::Contains
                    | Keyword::StartsWith
                    | Keyword::EndsWith,
                ) => {
                    left = self.predicate(left, false)?;
                    continue;
                }
                _ => return Ok(left),
            };
            self.advance()?;
            let right = self.unary()?;
            left = self.ordered(order, left, right)?;
        }
    }

    fn ordered(&mut self, order: Order, left: Operand, right: Operand) -> Parsed {
        for operand in [left, right] {
            if matches!(
                operand.kind,
                Kind::Text | Kind::Constant(_) | Kind::Condition
            ) {
                return Err(self.refuse(operand, "only numbers and properties have an order"));
            }
        }
        let node = Node::Ordered(order, left.place, right.place);
        self.add(
            node,
            Kind::Condition,
            left.start,
            &[left.place, right.place],
        )
    }

    /// What may follow NOT behind an operand.
    fn predicate(&mut self, left: Operand, is_negated: bool) -> Parsed {
        let search = match self.token.token {
            Token::Keyword(Keyword::Between) => return self.between(left, is_negated),
            Token::Keyword(Keyword::In) => return self.one_of(left, is_negated),
            Token::Keyword(Keyword::Contains) => Search::Contains,
            Token::Keyword(Keyword::StartsWith) => Search::StartsWith,
            Token::Keyword(Keyword::EndsWith) => Search::EndsWith,
            _ => {
                return Err(
                    self.unexpected("expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
                );
            }
        };
        self.advance()?;
        let text = self.text()?;
        let text = self.add_text(text);
        let value = left.place;
        let node = Node::Search {
            search,
            is_negated,
            value,
            text,
        };
        self.add(node, Kind::Condition, left.start, &[value])
    }

    fn between(&mut self, value: Operand, is_negated: bool) -> Parsed {
        self.advance()?;
        let low = self.unary()?;
        self.expect(
            Token::Keyword(Keyword::And),
            "expected AND and the upper bound",
        )?;
        let high = self.unary()?;
        if let (Kind::Number(least), Kind::Number(most), false) = (low.kind, high.kind, is_negated)
            && least.compare(most) == Ordering::Greater
        {
            return Err(self.refuse(low, "the lower bound is above the upper one"));
        }
        let (above, below) = if is_negated {
            (Order::Less, Order::Greater)
        } else {
            (Order::GreaterEqual, Order::LessEqual)
        };
        let bounds = [
            self.ordered(above, value, low)?,
            self.ordered(below, value, high)?,
        ];
        self.combine(&bounds, if is_negated { Node::Or } else { Node::And })
    }

    fn one_of(&mut self, left: Operand, is_negated: bool) -> Parsed {
        let Kind::Property(property) = left.kind else {
            return Err(self.refuse(left, "expected a property in front of IN"));
        };
        self.advance()?;
        self.expect(Token::Symbol(Symbol::Open), "expected ( and texts")?;
        let mut texts = vec![self.text()?];
        while self.token.token == Token::Symbol(Symbol::Comma) {
            self.advance()?;
            texts.push(self.text()?);
        }
        self.expect(Token::Symbol(Symbol::Close), "expected , or )")?;
        texts.sort_unstable();
        texts.dedup();
        let start = self.program.texts.len() as Place;
        for text in texts {
            self.add_text(text);
        }
        let end = self.program.texts.len() as Place;
        let node = Node::In {
            property,
            texts: Run { start, end },
        };
        let one_of = self.add(node, Kind::Condition, left.start, &[left.place])?;
        self.negate_if(is_negated, one_of)
    }

    fn unary(&mut self) -> Parsed {
        let start = self.token.start;
        match self.token.token {
            Token::Symbol(Symbol::Plus) => {
                self.advance()?;
                self.deeper(Self::unary)
            }
            Token::Symbol(Symbol::Minus) => {
                self.advance()?;
                let operand = self.deeper(Self::unary)?;
                let node = Node::Negate(operand.place);
                self.add(node, Kind::Signed, start, &[operand.place])
            }
            Token::Keyword(Keyword::Not) => {
                self.advance()?;
                let operand = self.deeper(Self::unary)?;
                let condition = self.condition(operand)?;
                let node = Node::Not(condition.place);
                self.add(node, Kind::Condition, start, &[condition.place])
            }
            _ => self.primary(),
        }
    }

    fn deeper(&mut self, parse: fn(&mut Self) -> Parsed) -> Parsed {
        if self.depth >= DEPTH_MAX {
            let reason = format!("more than {DEPTH_MAX} parts inside one another");
            return Err(self.unexpected(&reason));
        }
        self.depth += 1;
        let operand = parse(self);
        self.depth -= 1;
        operand
    }

    fn primary(&mut self) -> Parsed {
        let start = self.token.start;
        let (node, kind) = match &mut self.token.token {
            Token::Symbol(Symbol::Open) => {
                self.advance()?;
                let operand = self.deeper(Self::or)?;
                self.expect(Token::Symbol(Symbol::Close), "expected )")?;
                return Ok(operand);
            }
            Token::Name(name) => {
                let name = *name;
                let property = self.property(name)?;
                (Node::Property(property), Kind::Property(property))
            }
            Token::Number(number) => (Node::Number(*number), Kind::Number(*number)),
            Token::Text(text) => {
                let text = std::mem::take(text);
                (Node::Text(self.add_text(text)), Kind::Text)
            }
            Token::Keyword(Keyword::True) => constant(Some(true)),
            Token::Keyword(Keyword::False) => constant(Some(false)),
            Token::Keyword(Keyword::Null) => constant(None),
            _ => return Err(self.unexpected("expected a property, a text or a number")),
        };
        self.advance()?;
        self.add(node, kind, start, &[])
    }
}

fn constant(truth: Option<bool>) -> (Node, Kind) {
    (Node::Truth(truth), Kind::Constant(truth))
}

impl Program {
    /// Sorts the properties, so that a record's are looked up by halving.
    fn sort_properties(&mut self) {
        let mut order: Vec<usize> = (0..self.properties.len()).collect();
        order.sort_by(|left, right| self.properties[*left].cmp(&self.properties[*right]));
        let mut moved = vec![0; order.len()];
        for (to, from) in order.iter().enumerate() {
            moved[*from] = to as Place;
        }
        self.properties.sort_unstable();
        for node in &mut self.nodes {
            if let Node::Property(property) | Node::In { property, .. } = node {
                *property = moved[usize::from(*property)];
            }
        }
    }
}
