//! Reads values as leniently as fastjson: clients in other languages rely on it.

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A value, or its default for null: Go writes null for an empty slice.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// An integer, bare or quoted, or 0 for null: C++ quotes 64-bit numbers.
pub(super) fn integer<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64> + Default,
{
    deserializer.deserialize_any(IntegerVisitor(PhantomData))
}

struct IntegerVisitor<T>(PhantomData<T>);

impl<T: TryFrom<i64> + Default> IntegerVisitor<T> {
    fn narrow<E: Error>(number: i64) -> Result<T, E> {
        T::try_from(number).map_err(|_| E::custom(format_args!("{number} is out of range")))
    }
}

impl<T: TryFrom<i64> + Default> Visitor<'_> for IntegerVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer, bare or quoted")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        Self::narrow(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        let number = i64::try_from(number).map_err(E::custom)?;
        Self::narrow(number)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Self::narrow(text.parse().map_err(E::custom)?)
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Ok(T::default())
    }
}

/// A list of integers, bare or quoted: Go quotes the codes of tags. Null is an empty list.
pub(super) fn integers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i64>, D::Error> {
    deserializer.deserialize_any(IntegersVisitor)
}

struct IntegersVisitor;

/// One element of [`integers`].
#[derive(Deserialize)]
struct Integer(#[serde(deserialize_with = "integer")] i64);

impl<'de> Visitor<'de> for IntegersVisitor {
    type Value = Vec<i64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of integers, bare or quoted")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<i64>, A::Error> {
        let mut numbers = Vec::new();
        while let Some(Integer(number)) = list.next_element()? {
            numbers.push(number);
        }
        Ok(numbers)
    }

    fn visit_unit<E: Error>(self) -> Result<Vec<i64>, E> {
        Ok(Vec::new())
    }
}

/// A boolean, bare, quoted or as a number; null is false.
pub(super) fn boolean<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    deserializer.deserialize_any(BooleanVisitor)
}

struct BooleanVisitor;

impl Visitor<'_> for BooleanVisitor {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a boolean, bare, quoted or as a number")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<bool, E> {
        Ok(number != 0)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<bool, E> {
        Ok(number != 0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        Ok(text.eq_ignore_ascii_case("true") || text == "1")
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }
}

/// The name of a constant of Java, sent as such or, by C++, as its ordinal; null is the default. An unknown name is
/// kept; an unknown ordinal, at which Java refuses the body, is the default.
pub(super) struct EnumNames {
    pub names: &'static [&'static str],
    pub default: &'static str,
}

impl EnumNames {
    pub fn deserialize<'de, D: Deserializer<'de>>(
        &self,
        deserializer: D,
    ) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for &EnumNames {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name or a number of an enumeration")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<String, E> {
        Ok(name.to_owned())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<String, E> {
        Ok(self.default.to_owned())
    }

    fn visit_u64<E: Error>(self, ordinal: u64) -> Result<String, E> {
        let ordinal = usize::try_from(ordinal).unwrap_or(usize::MAX);
        let name = self.names.get(ordinal).unwrap_or(&self.default);
        Ok((*name).to_owned())
    }

    fn visit_unit<E: Error>(self) -> Result<String, E> {
        Ok(self.default.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Values {
        #[serde(deserialize_with = "integer")]
        small: i32,
        #[serde(deserialize_with = "integers")]
        list: Vec<i64>,
        #[serde(deserialize_with = "boolean")]
        flag: bool,
        #[serde(deserialize_with = "or_default")]
        text: String,
    }

    fn check(text: &str, expected: Option<Values>) {
        assert_eq!(serde_json::from_str(text).ok(), expected, "{text}");
    }

    #[test]
    fn values_are_coerced() {
        let values = |small, list: &[i64], flag| {
            Some(Values {
                small,
                list: list.to_vec(),
                flag,
                text: String::new(),
            })
        };
        check("{}", values(0, &[], false));
        check(
            r#"{"small":null,"list":null,"flag":null,"text":null}"#,
            values(0, &[], false),
        );
        check(
            r#"{"small":"-7","list":["1",-2,"3"],"flag":"TRUE"}"#,
            values(-7, &[1, -2, 3], true),
        );
        check(r#"{"flag":1}"#, values(0, &[], true));
        check(r#"{"flag":"1"}"#, values(0, &[], true));
        check(r#"{"flag":"yes"}"#, values(0, &[], false));
        check(
            &format!(r#"{{"list":[{}]}}"#, i64::MAX),
            values(0, &[i64::MAX], false),
        );
    }

    #[test]
    fn values_of_another_kind_are_errors() {
        for text in [
            r#"{"small":2147483648}"#,
            r#"{"small":"x"}"#,
            r#"{"small":1.5}"#,
            r#"{"list":[18446744073709551615]}"#,
            r#"{"list":{}}"#,
            r#"{"flag":[]}"#,
            r#"{"text":5}"#,
        ] {
            check(text, None);
        }
    }
}
