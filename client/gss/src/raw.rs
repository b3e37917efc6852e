//! The library's functions as safe methods on what they make. Each object is released once, and no
//! pointer leaves this file.

use crate::error::{Error, Kind};
use crate::sys::{self, Buffer, Functions, KeyValue, KeyValues, OidDesc, OidSet};
use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::ops::Deref;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

/// GSS_S_CONTINUE_NEEDED: the peer's next token is needed.
const CONTINUE_NEEDED: u32 = 1;
/// The bits of a major status that tell an error, not a remark.
const ERRORS: u32 = 0xffff_0000;
/// Most parts of the text of one status.
const MAX_TEXT_PARTS: usize = 8;

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// The loaded library.
#[derive(Clone, Copy)]
pub(crate) struct Raw(&'static Functions);

/// What establishes a context has done with a token.
pub(crate) struct Stepped {
    pub(crate) token: Output,
    pub(crate) done: bool,
    pub(crate) mutual: bool,
}

impl Raw {
    /// Loads the library, once in a process that has it.
    pub(crate) fn load() -> Result<Raw, Error> {
        if let Some(functions) = FUNCTIONS.get() {
            return Ok(Raw(functions));
        }
        let functions = sys::load(c"libgssapi_krb5.so.2")
            .map_err(|error| Error::new(Kind::NotInstalled, error.to_string()))?;
        Ok(Raw(FUNCTIONS.get_or_init(|| functions)))
    }

    /// Passes a major status on, or makes an error of it.
    fn check(self, major: u32, minor: u32) -> Result<u32, Error> {
        match major & ERRORS {
            0 => Ok(major),
            _ => {
                let text = [(major, sys::GSS_CODE), (minor, sys::MECH_CODE)]
                    .map(|(status, kind)| self.text(status, kind))
                    .join(": ");
                Err(Error::of_library(major, minor, text))
            }
        }
    }

    fn text(self, status: u32, kind: c_int) -> String {
        let (mut minor, mut more) = (0, 0);
        let mut parts = Vec::new();
        while parts.len() < MAX_TEXT_PARTS {
            let mut part = self.output();
            // SAFETY: all pointers are to values of this function or static ones.
            let major = unsafe {
                (self.0.gss_display_status)(
                    &mut minor,
                    status,
                    kind,
                    &sys::KRB5,
                    &mut more,
                    &mut part.buffer,
                )
            };
            if major & ERRORS != 0 {
                break;
            }
            parts.push(String::from_utf8_lossy(&part).into_owned());
            if more == 0 {
                break;
            }
        }
        parts.join(", ")
    }

    fn output(self) -> Output {
        Output {
            raw: self,
            buffer: Buffer::EMPTY,
        }
    }

    /// A service on a host, `nfs@host`.
    pub(crate) fn service_name(self, name: &str) -> Result<Name, Error> {
        self.name(name, &sys::HOST_BASED_SERVICE)
    }

    /// A principal, of the default realm unless the name has one.
    pub(crate) fn principal_name(self, name: &str) -> Result<Name, Error> {
        self.name(name, &sys::PRINCIPAL)
    }

    fn name(self, name: &str, kind: &'static OidDesc) -> Result<Name, Error> {
        let mut made = Name {
            raw: self,
            handle: ptr::null_mut(),
        };
        let mut minor = 0;
        // SAFETY: the input is read during the call only; the type is static.
        let major = unsafe {
            let input = Buffer::input(name.as_bytes());
            (self.0.gss_import_name)(&mut minor, &input, kind, &mut made.handle)
        };
        self.check(major, minor)?;
        Ok(made)
    }

    /// Finds a credential: of `name` or the default one, in the places that `store` names.
    pub(crate) fn acquire(
        self,
        name: Option<&Name>,
        accept: bool,
        store: &[(&str, &str)],
    ) -> Result<Credential, Error> {
        let c_string = |text: &str| {
            CString::new(text).map_err(|_| Error::new(Kind::Other, "a name has a NUL byte"))
        };
        let mut texts = Vec::new();
        for (key, value) in store {
            texts.push((c_string(key)?, c_string(value)?));
        }
        let elements: Vec<KeyValue> = texts
            .iter()
            .map(|(key, value)| KeyValue {
                key: key.as_ptr(),
                value: value.as_ptr(),
            })
            .collect();
        let store = KeyValues {
            count: elements.len() as u32,
            elements: elements.as_ptr(),
        };
        let mechanisms = OidSet {
            count: 1,
            elements: &sys::KRB5,
        };
        let usage = if accept { sys::ACCEPT } else { sys::INITIATE };
        let mut made = Credential {
            raw: self,
            handle: ptr::null_mut(),
            lifetime: Duration::MAX,
        };
        let (mut minor, mut seconds) = (0, 0);
        // SAFETY: name, mechanisms, store and its strings live until the call returns.
        let major = unsafe {
            (self.0.gss_acquire_cred_from)(
                &mut minor,
                name.map_or(ptr::null_mut(), |name| name.handle),
                sys::INDEFINITE,
                &mechanisms,
                usage,
                if elements.is_empty() {
                    ptr::null()
                } else {
                    &store
                },
                &mut made.handle,
                ptr::null_mut(),
                &mut seconds,
            )
        };
        self.check(major, minor)?;
        made.lifetime = lifetime(seconds);
        Ok(made)
    }

    /// The name of the cache that is taken if none is named.
    pub(crate) fn usual_cache(self) -> Result<String, Error> {
        let (mut minor, mut name) = (0, ptr::null());
        // SAFETY: no name is set; the old one is the library's, and stays until this thread asks again.
        let (major, name) = unsafe {
            let major = (self.0.gss_krb5_ccache_name)(&mut minor, ptr::null(), &mut name);
            let text = (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy());
            (major, text.unwrap_or_default().into_owned())
        };
        self.check(major, minor)?;
        Ok(name)
    }

    /// A context that another process has exported.
    pub(crate) fn import(self, exported: &[u8]) -> Result<Context, Error> {
        let mut made = self.no_context();
        let mut minor = 0;
        // SAFETY: the input is read during the call only.
        let major = unsafe {
            let input = Buffer::input(exported);
            (self.0.gss_import_sec_context)(&mut minor, &input, &mut made.handle)
        };
        self.check(major, minor)?;
        Ok(made)
    }

    /// GSS_C_NO_CONTEXT, with which a context begins.
    pub(crate) fn no_context(self) -> Context {
        Context {
            raw: self,
            handle: ptr::null_mut(),
        }
    }
}

fn lifetime(seconds: u32) -> Duration {
    match seconds {
        sys::INDEFINITE => Duration::MAX,
        seconds => Duration::from_secs(seconds.into()),
    }
}

/// Bytes that the library has made. `Debug` shows their number.
pub struct Output {
    raw: Raw,
    buffer: Buffer,
}

// SAFETY: the memory is owned, and freed by a function that any thread may call.
unsafe impl Send for Output {}
// SAFETY: it is only read.
unsafe impl Sync for Output {}

impl Deref for Output {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.buffer.value.is_null() {
            return &[];
        }
        // SAFETY: the library has filled in a pointer to this many bytes, which live until the drop.
        unsafe { std::slice::from_raw_parts(self.buffer.value.cast(), self.buffer.length) }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.len())
    }
}

impl Output {
    /// Overwrites the bytes.
    pub(crate) fn wipe(&mut self) {
        if self.buffer.value.is_null() {
            return;
        }
        let bytes: *mut u8 = self.buffer.value.cast();
        for at in 0..self.buffer.length {
            // SAFETY: `deref` reads the same bytes; nobody else has them.
            unsafe { bytes.add(at).write_volatile(0) };
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the buffer is empty or the library's, and is not used again.
        unsafe { (self.raw.0.gss_release_buffer)(&mut minor, &mut self.buffer) };
    }
}

/// A name in the library's form.
pub(crate) struct Name {
    raw: Raw,
    handle: sys::Name,
}

// SAFETY: a name is never changed, and may be used and freed by any thread.
unsafe impl Send for Name {}

impl Name {
    /// The principal that Kerberos takes for this name, with the realm that krb5.conf has for it.
    pub(crate) fn principal(&self) -> Result<Name, Error> {
        let mut made = Name {
            raw: self.raw,
            handle: ptr::null_mut(),
        };
        let mut minor = 0;
        // SAFETY: this name is the library's, and the mechanism static.
        let major = unsafe {
            let canonicalize = self.raw.0.gss_canonicalize_name;
            canonicalize(&mut minor, self.handle, &sys::KRB5, &mut made.handle)
        };
        self.raw.check(major, minor)?;
        Ok(made)
    }

    pub(crate) fn show(&self) -> Result<String, Error> {
        let mut text = self.raw.output();
        let mut minor = 0;
        // SAFETY: the name is the library's; the output belongs to this function.
        let major = unsafe {
            let text = &mut text.buffer;
            (self.raw.0.gss_display_name)(&mut minor, self.handle, text, ptr::null_mut())
        };
        self.raw.check(major, minor)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut minor = 0;
        if !self.handle.is_null() {
            // SAFETY: the library's handle, which is not used again.
            unsafe { (self.raw.0.gss_release_name)(&mut minor, &mut self.handle) };
        }
    }
}

/// Tickets or keys that were found.
pub(crate) struct Credential {
    raw: Raw,
    handle: sys::Credential,
    pub(crate) lifetime: Duration,
}

// SAFETY: MIT's credentials have a lock of their own.
unsafe impl Send for Credential {}
// SAFETY: likewise.
unsafe impl Sync for Credential {}

impl Credential {
    /// Limits contexts to these encryption types, best first.
    pub(crate) fn set_enctypes(&self, enctypes: &[i32]) -> Result<(), Error> {
        let mut minor = 0;
        // SAFETY: the array is copied during the call.
        let major = unsafe {
            let (count, first) = (enctypes.len() as u32, enctypes.as_ptr());
            (self.raw.0.gss_krb5_set_allowable_enctypes)(&mut minor, self.handle, count, first)
        };
        self.raw.check(major, minor).map(drop)
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        let mut minor = 0;
        if !self.handle.is_null() {
            // SAFETY: the library's handle, which is not used again.
            unsafe { (self.raw.0.gss_release_cred)(&mut minor, &mut self.handle) };
        }
    }
}

/// A context, which may be incomplete.
pub(crate) struct Context {
    raw: Raw,
    handle: sys::Context,
}

// SAFETY: a context has no ties to a thread. Its functions change it without a lock, so it is not
// `Sync`.
unsafe impl Send for Context {}

impl Context {
    /// The initiator's next step, with the acceptor's token (at first none).
    pub(crate) fn initiate(
        &mut self,
        credential: &Credential,
        target: &Name,
        token: &[u8],
    ) -> Result<Stepped, Error> {
        let wanted = sys::MUTUAL | sys::CONFIDENTIALITY | sys::INTEGRITY;
        let mut output = self.raw.output();
        let (mut minor, mut granted) = (0, 0);
        // SAFETY: credential and target are the library's, and live as long as the call; the context
        // is none, or the library's; the token is read during the call only.
        let major = unsafe {
            let input = Buffer::input(token);
            (self.raw.0.gss_init_sec_context)(
                &mut minor,
                credential.handle,
                &mut self.handle,
                target.handle,
                &sys::KRB5,
                wanted,
                0,
                ptr::null(),
                &input,
                ptr::null_mut(),
                &mut output.buffer,
                &mut granted,
                ptr::null_mut(),
            )
        };
        let major = self.raw.check(major, minor)?;
        Ok(stepped(output, major, granted))
    }

    /// The acceptor's next step, with the initiator's token. Also returns the initiator's name.
    pub(crate) fn accept(
        &mut self,
        credential: &Credential,
        token: &[u8],
    ) -> Result<(Stepped, Name), Error> {
        let mut name = Name {
            raw: self.raw,
            handle: ptr::null_mut(),
        };
        let mut output = self.raw.output();
        let (mut minor, mut granted) = (0, 0);
        // SAFETY: as in `initiate`; no delegated credential is asked for.
        let major = unsafe {
            let input = Buffer::input(token);
            (self.raw.0.gss_accept_sec_context)(
                &mut minor,
                &mut self.handle,
                credential.handle,
                &input,
                ptr::null(),
                &mut name.handle,
                ptr::null_mut(),
                &mut output.buffer,
                &mut granted,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let major = self.raw.check(major, minor)?;
        Ok((stepped(output, major, granted), name))
    }

    /// How long the context is still valid.
    pub(crate) fn remaining(&self) -> Result<Duration, Error> {
        let (mut minor, mut seconds) = (0, 0);
        // SAFETY: the context is the library's.
        let major = unsafe { (self.raw.0.gss_context_time)(&mut minor, self.handle, &mut seconds) };
        self.raw.check(major, minor)?;
        Ok(lifetime(seconds))
    }

    pub(crate) fn mic(&self, message: &[u8]) -> Result<Output, Error> {
        let mut output = self.raw.output();
        let mut minor = 0;
        // SAFETY: the context is the library's; the message is read during the call only.
        let major = unsafe {
            let (input, output) = (Buffer::input(message), &mut output.buffer);
            (self.raw.0.gss_get_mic)(&mut minor, self.handle, 0, &input, output)
        };
        self.raw.check(major, minor)?;
        Ok(output)
    }

    pub(crate) fn verify_mic(&self, message: &[u8], mic: &[u8]) -> Result<(), Error> {
        let mut minor = 0;
        // SAFETY: the context is the library's; message and MIC are read during the call only.
        let major = unsafe {
            let (message, mic) = (Buffer::input(message), Buffer::input(mic));
            (self.raw.0.gss_verify_mic)(&mut minor, self.handle, &message, &mic, ptr::null_mut())
        };
        self.raw.check(major, minor).map(drop)
    }

    /// Encrypts a message.
    pub(crate) fn wrap(&self, message: &[u8]) -> Result<Output, Error> {
        let mut output = self.raw.output();
        let (mut minor, mut private) = (0, 0);
        // SAFETY: the context is the library's; the message is read during the call only.
        let major = unsafe {
            let (input, output) = (Buffer::input(message), &mut output.buffer);
            (self.raw.0.gss_wrap)(&mut minor, self.handle, 1, 0, &input, &mut private, output)
        };
        self.raw.check(major, minor)?;
        only_private(private, output)
    }

    /// Decrypts a message, and refuses one that was not encrypted.
    pub(crate) fn unwrap(&self, wrapped: &[u8]) -> Result<Output, Error> {
        let mut output = self.raw.output();
        let (mut minor, mut private) = (0, 0);
        // SAFETY: the context is the library's; the message is read during the call only.
        let major = unsafe {
            let (input, output) = (Buffer::input(wrapped), &mut output.buffer);
            let (private, quality) = (&mut private, ptr::null_mut());
            (self.raw.0.gss_unwrap)(&mut minor, self.handle, &input, output, private, quality)
        };
        self.raw.check(major, minor)?;
        only_private(private, output)
    }

    /// Calls a function with the key of the context's messages and the number of its encryption type. `None` if the
    /// library does not tell them.
    pub(crate) fn with_key<T>(&self, work: impl FnOnce(u8, &[u8]) -> Option<T>) -> Option<T> {
        let mut minor = 0;
        let mut set = ptr::null_mut();
        // SAFETY: the context is the library's, which makes the set.
        let major = unsafe {
            let inquire = self.raw.0.gss_inquire_sec_context_by_oid;
            inquire(&mut minor, self.handle, &sys::SESSION_KEY, &mut set)
        };
        let made = match self.raw.check(major, minor) {
            // SAFETY: the library has made as many elements as it says, which live until the set is released.
            Ok(_) if !set.is_null() => unsafe {
                match (*set).count {
                    2 => [0, 1].map(|at| (*(*set).elements.add(at)).bytes()),
                    _ => [&[][..]; 2],
                }
            },
            _ => [&[][..]; 2],
        };
        let enctype = made[1].strip_prefix(&sys::ENCTYPE[..]);
        let result = match enctype {
            Some(&[enctype]) => work(enctype, made[0]),
            _ => None,
        };
        // SAFETY: the library's set or none, of which nothing is used again. It overwrites the key.
        unsafe { (self.raw.0.gss_release_buffer_set)(&mut minor, &mut set) };
        result
    }

    /// The context as bytes for another process. It ends here.
    pub(crate) fn export(mut self) -> Result<Output, Error> {
        let mut output = self.raw.output();
        let mut minor = 0;
        // SAFETY: the context is the library's, which sets it to none when it has exported it.
        let major = unsafe {
            let output = &mut output.buffer;
            (self.raw.0.gss_export_sec_context)(&mut minor, &mut self.handle, output)
        };
        self.raw.check(major, minor)?;
        Ok(output)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut minor = 0;
        if !self.handle.is_null() {
            // SAFETY: the library's handle, which is not used again. No token is asked for.
            unsafe {
                (self.raw.0.gss_delete_sec_context)(&mut minor, &mut self.handle, ptr::null_mut())
            };
        }
    }
}

fn stepped(token: Output, major: u32, granted: u32) -> Stepped {
    Stepped {
        token,
        done: major & CONTINUE_NEEDED == 0,
        mutual: granted & sys::MUTUAL != 0,
    }
}

fn only_private(private: c_int, output: Output) -> Result<Output, Error> {
    match private {
        0 => Err(Error::new(Kind::Defective, "the message is not encrypted")),
        _ => Ok(output),
    }
}
