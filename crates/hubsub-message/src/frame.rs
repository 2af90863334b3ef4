//! A frame, and the macro that defines a set of them.
//!
//! ```text
//!  0            4      5
//!  ├────────────┼──────┼───────────────┐
//!  │ length u32 │ type │ body          │      length: of type and body, little-endian
//!  └────────────┴──────┴───────────────┘
//! ```

/// Bytes before a frame's type.
pub const LENGTH_BYTES: usize = 4;

/// Appends a whole frame, whose type and body `write` appends; returns its length.
pub fn framed(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    write(out);
    let bytes = out.len() - start;
    // A longer frame exceeds every limit, so its sender refuses it.
    let length = u32::try_from(bytes - LENGTH_BYTES).unwrap_or(u32::MAX);
    out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Defines an enum of frames, with their encoding.
///
/// A frame has its type on the wire, a name, a [`Lane`](crate::Lane) and its fields in the order of the wire,
/// each encoded by [`Field`](crate::Field). `by module` after the lane names a module whose functions `write`
/// and `read` encode the fields instead, where their order on the wire is another. A last entry `_
/// Name(Type)` adds the frames of another such enum.
#[macro_export]
macro_rules! frames {
    (
        $(#[$meta:meta])*
        pub enum $Frame:ident $(<$lt:lifetime>)? {
            $(
                $(#[$doc:meta])+
                $code:literal $name:ident $lane:ident $(by $by:ident)? {
                    $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
                }
            )+
            $(_ $Other:ident($other:ty))?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Debug)]
        pub enum $Frame $(<$lt>)? {
            $($(#[$doc])+ $name { $($(#[$field_doc])* $field: $type,)* },)+
            $(
                /// A frame of another set.
                $Other($other),
            )?
        }

        impl $(<$lt>)? $Frame $(<$lt>)? {
            /// Its name, for errors and logs.
            pub fn name(&self) -> &'static str {
                match self {
                    $($Frame::$name { .. } => stringify!($name),)+
                    $($Frame::$Other(other) => other.name(),)?
                }
            }

            /// The lane in which it is queued and counted.
            pub fn lane(&self) -> $crate::Lane {
                match self {
                    $($Frame::$name { .. } => $crate::Lane::$lane,)+
                    $($Frame::$Other(other) => other.lane(),)?
                }
            }

            /// Name and lane of the frames of a type; `None` if the type is unknown.
            pub fn of_type(code: u8) -> Option<(&'static str, $crate::Lane)> {
                match code {
                    $($code => Some((stringify!($name), $crate::Lane::$lane)),)+
                    $(_ => <$other>::of_type(code),)?
                    #[allow(unreachable_patterns, reason = "the other set knows the rest")]
                    _ => None,
                }
            }

            /// Appends the whole frame; returns its length.
            pub fn encode(&self, out: &mut Vec<u8>) -> usize {
                match self {
                    $($Frame::$name { $($field,)* } => $crate::frame::framed(out, |out| {
                        out.push($code);
                        $crate::frames!(@write out [$($by)?] $($field)*);
                    }),)+
                    $($Frame::$Other(other) => other.encode(out),)?
                }
            }

            /// Decodes the body of a frame of this type.
            ///
            /// # Errors
            /// The type is unknown, or the body is invalid for it.
            pub fn read(code: u8, from: &mut $crate::Reader $(<$lt>)?) -> Result<Self, $crate::FrameError> {
                match code {
                    $($code => {
                        let read = $crate::frames!(@read from [$($by)?] $Frame $name $($field)*);
                        read.map_err(|flaw| $crate::FrameError::Flawed { frame: stringify!($name), flaw })
                    })+
                    $(_ => <$other>::read(code, from).map($Frame::$Other),)?
                    #[allow(unreachable_patterns, reason = "the other set knows the rest")]
                    _ => Err($crate::FrameError::UnknownType(code)),
                }
            }
        }
    };
    (@write $out:ident [] $($field:ident)*) => { $($crate::Field::write($field, $out);)* };
    (@write $out:ident [$by:ident] $($field:ident)*) => { $by::write($out, $($field),*) };
    (@read $from:ident [] $Frame:ident $name:ident $($field:ident)*) => {{
        let mut read = || Ok($Frame::$name { $($field: $crate::Field::read($from)?,)* });
        read()
    }};
    (@read $from:ident [$by:ident] $Frame:ident $name:ident $($field:ident)*) => { $by::read($from) };
}
