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

/// An enumeration of Java. Its ordinals are the positions in `ALL`; unknown ones and null are the default, as
/// fastjson makes them null.
pub(super) trait JavaEnum: Copy + Default + 'static {
    const ALL: &'static [(Self, &'static str)];

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(value, _)| *value)
    }
}

/// Reads an enumeration by name or, as C++ sends it, by ordinal.
pub(super) fn java_enum<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: JavaEnum,
{
    deserializer.deserialize_any(EnumVisitor(PhantomData))
}

struct EnumVisitor<T>(PhantomData<T>);

impl<T: JavaEnum> Visitor<'_> for EnumVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name or a number of an enumeration")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        Ok(T::from_name(name).unwrap_or_default())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_u64<E: Error>(self, ordinal: u64) -> Result<T, E> {
        let known = usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| T::ALL.get(ordinal));
        Ok(known.map_or_else(T::default, |(value, _)| *value))
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Ok(T::default())
    }
}

/// Declares an enumeration of Java with its names, in the order of its ordinals. The first named is the default.
macro_rules! java_enum {
    ($(#[$doc:meta])* $type:ident, default $default:ident: $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)+
        }

        impl Default for $type {
            fn default() -> Self {
                Self::$default
            }
        }

        impl $crate::protocol::bodies::lenient::JavaEnum for $type {
            const ALL: &'static [(Self, &'static str)] = &[$((Self::$variant, $name)),+];
        }

        impl $type {
            /// Java's name of the constant.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The constant of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                $crate::protocol::bodies::lenient::JavaEnum::from_name(name)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::protocol::bodies::lenient::java_enum(deserializer)
            }
        }
    };
}
pub(super) use java_enum as declare_java_enum;

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
