//! Compiled by doc tests only, so that the code in the README works.
#![doc = include_str!("../README.md")]
