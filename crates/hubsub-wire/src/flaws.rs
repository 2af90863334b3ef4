//! Errors of peers: one list per protocol, of names, values, close or reason codes, and texts.

/// Makes an enum of such a list, with `Display` and a method that returns the code for the peer.
macro_rules! flaws {
    ($(#[$about:meta])+ enum $flaw:ident; $(#[$told:meta])+ fn $how:ident -> $code:ident;
     $($name:ident $(($($value:ident : $type:ty),+))? => $as:ident $words:literal;)+) => {
        $(#[$about])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $flaw { $(#[doc = $words] $name $(($($type),+))?,)+ }

        impl $flaw {
            $(#[$told])+
            #[must_use]
            pub fn $how(self) -> $code {
                match self {
                    $($crate::flaws::flaws!(@pattern $flaw $name $($($value)+)?) => $code::$as,)+
                }
            }
        }

        impl std::fmt::Display for $flaw {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match *self { $($flaw::$name $(($($value),+))? => write!(f, $words),)+ }
            }
        }

        impl std::error::Error for $flaw {}
    };
    (@pattern $flaw:ident $name:ident) => { $flaw::$name };
    (@pattern $flaw:ident $name:ident $($value:ident)+) => { $flaw::$name(..) };
}

pub(crate) use flaws;
