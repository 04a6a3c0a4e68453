//! SQL92 filter expressions over the properties of a message.
//!
//! An expression is compiled once, where its subscription comes in, into a [`Program`] of numbered nodes, and
//! evaluated on the stored bytes of each record: one pass over the properties finds those that it names, then the
//! nodes are walked. Nothing is allocated.
//!
//! **Values**: a property is a text, or null where it is missing or empty. Truth is three-valued: true, false,
//! unknown (null); only true matches. A text that is compared with a number is read as one.
//!
//! **Source**: apache/rocketmq 5.3.3 `filter/.../SelectorParser.jj`, `ComparisonExpression`, `UnaryExpression`,
//! `LogicExpression`. Its answers are kept wherever it gives one, `a <> b` without `b` (true) included; the table of
//! `tests.rs` has them. Where its evaluation throws, which drops the message whatever the rest of the expression
//! says, the comparison is unknown here: a text that is no number. A number is one whatever its form (`3.5` against
//! `3`, `3000000000` against `5`: Java's `Integer.valueOf` throws). Where Apache stops reading silently, as in
//! `a = 5 b = 10` or `a LIKE 'x'`, the expression is refused.

mod lexer;
mod number;
mod parser;
mod program;
#[cfg(test)]
mod tests;

use crate::limits::EXPRESSION_BYTES_MAX;
pub use program::Program;

/// Nodes of one program; a longer expression is refused. Source: ours, each of up to 800 records of a
/// pull walks them all.
pub const NODES_MAX: usize = 2048;
/// Parentheses and signs inside one another; deeper ones are refused. Source: ours, parsing and evaluation recurse.
pub const DEPTH_MAX: u32 = 64;
/// Different properties that one expression names; more are refused. Source: ours, their values stand on the stack.
pub const PROPERTIES_MAX: usize = 64;

/// Why an expression is refused; answered with code 23.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason} at position {position}: {token}")]
pub struct SqlError {
    /// In characters, the first is 1.
    pub position: usize,
    /// What stands there; "end of expression" behind the last.
    pub token: String,
    pub reason: String,
}

/// Compiles an expression. **Errors**: what is wrong, where, at which token.
pub fn compile(expression: &str) -> Result<Program, SqlError> {
    if expression.len() > EXPRESSION_BYTES_MAX {
        return Err(SqlError {
            position: 1,
            token: format!("{} bytes", expression.len()),
            reason: format!("the expression is longer than {EXPRESSION_BYTES_MAX} bytes"),
        });
    }
    parser::parse(expression)
}
