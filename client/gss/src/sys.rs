//! The C interface of libgssapi_krb5 (RFC 2744), found in the library at run time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// gss_buffer_desc.
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) length: usize,
    pub(crate) value: *mut c_void,
}

impl Buffer {
    /// GSS_C_EMPTY_BUFFER.
    pub(crate) const EMPTY: Buffer = Buffer {
        length: 0,
        value: ptr::null_mut(),
    };

    /// A buffer that the library reads, and that is valid as long as `bytes`.
    pub(crate) fn input(bytes: &[u8]) -> Buffer {
        Buffer {
            length: bytes.len(),
            value: bytes.as_ptr().cast_mut().cast(),
        }
    }

    /// What is in a buffer of the library.
    ///
    /// # Safety
    /// The buffer is one that the library has filled, and is not released as long as the bytes are used.
    pub(crate) unsafe fn bytes<'a>(&self) -> &'a [u8] {
        match self.value.is_null() {
            true => &[],
            // SAFETY: as the caller says.
            false => unsafe { std::slice::from_raw_parts(self.value.cast(), self.length) },
        }
    }
}

/// gss_OID_desc.
#[repr(C)]
pub(crate) struct OidDesc {
    length: u32,
    elements: *const c_void,
}

// SAFETY: the elements are never written to; all values are static.
unsafe impl Sync for OidDesc {}

impl OidDesc {
    const fn new(encoded: &'static [u8]) -> OidDesc {
        OidDesc {
            length: encoded.len() as u32,
            elements: encoded.as_ptr().cast(),
        }
    }
}

pub(crate) type Oid = *const OidDesc;

/// gss_OID_set_desc.
#[repr(C)]
pub(crate) struct OidSet {
    pub(crate) count: usize,
    pub(crate) elements: Oid,
}

/// gss_buffer_set_desc.
#[repr(C)]
pub(crate) struct BufferSet {
    pub(crate) count: usize,
    pub(crate) elements: *mut Buffer,
}

/// gss_key_value_element_desc.
#[repr(C)]
pub(crate) struct KeyValue {
    pub(crate) key: *const c_char,
    pub(crate) value: *const c_char,
}

/// gss_key_value_set_desc.
#[repr(C)]
pub(crate) struct KeyValues {
    pub(crate) count: u32,
    pub(crate) elements: *const KeyValue,
}

/// The mechanism Kerberos V5: 1.2.840.113554.1.2.2 (RFC 4121 section 1).
pub(crate) static KRB5: OidDesc =
    OidDesc::new(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02]);
/// A name like nfs@host: 1.2.840.113554.1.2.1.4 (RFC 2743 section 4.1).
pub(crate) static HOST_BASED_SERVICE: OidDesc =
    OidDesc::new(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x01, 0x04]);
/// The name of a principal: 1.2.840.113554.1.2.2.1 (RFC 1964 section 2.1.1).
pub(crate) static PRINCIPAL: OidDesc =
    OidDesc::new(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02, 0x01]);

/// Asks for the key of a context's messages, GSS_C_INQ_SSPI_SESSION_KEY: 1.2.840.113554.1.2.2.5.5 (gssapi_ext.h).
pub(crate) static SESSION_KEY: OidDesc = OidDesc::new(&[
    0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02, 0x05, 0x05,
]);
/// What names its encryption type begins with: 1.2.840.113554.1.2.2.4.
pub(crate) const ENCTYPE: [u8; 10] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02, 0x04];

/// Handles, which only the library looks into.
pub(crate) type Name = *mut c_void;
pub(crate) type Credential = *mut c_void;
pub(crate) type Context = *mut c_void;

/// gss_cred_usage_t.
pub(crate) const ACCEPT: c_int = 2;
pub(crate) const INITIATE: c_int = 1;
/// Kinds of a status for gss_display_status.
pub(crate) const GSS_CODE: c_int = 1;
pub(crate) const MECH_CODE: c_int = 2;
/// Requested and granted properties of a context (RFC 2744 section 5.19).
pub(crate) const MUTUAL: u32 = 2;
pub(crate) const CONFIDENTIALITY: u32 = 16;
pub(crate) const INTEGRITY: u32 = 32;
/// A time without end.
pub(crate) const INDEFINITE: u32 = u32::MAX;

/// Defines a table of the library's functions, all of which return a major status.
macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?);)*) => {
        /// The functions, found in the library.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Functions {
            fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: these are the types of RFC 2744 and of MIT's gssapi_ext.h and
                // gssapi_krb5.h, for functions of these names in a library of this name and
                // version of the interface.
                unsafe {
                    Ok(Functions {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)*
                    })
                }
            }
        }
    };
}

functions! {
    gss_acquire_cred_from(
        *mut u32, Name, u32, *const OidSet, c_int, *const KeyValues, *mut Credential, *mut c_void,
        *mut u32,
    );
    gss_release_cred(*mut u32, *mut Credential);
    gss_krb5_set_allowable_enctypes(*mut u32, Credential, u32, *const i32);
    gss_krb5_ccache_name(*mut u32, *const c_char, *mut *const c_char);
    gss_import_name(*mut u32, *const Buffer, Oid, *mut Name);
    gss_canonicalize_name(*mut u32, Name, Oid, *mut Name);
    gss_display_name(*mut u32, Name, *mut Buffer, *mut c_void);
    gss_release_name(*mut u32, *mut Name);
    gss_init_sec_context(
        *mut u32, Credential, *mut Context, Name, Oid, u32, u32, *const c_void, *const Buffer,
        *mut c_void, *mut Buffer, *mut u32, *mut u32,
    );
    gss_accept_sec_context(
        *mut u32, *mut Context, Credential, *const Buffer, *const c_void, *mut Name, *mut c_void,
        *mut Buffer, *mut u32, *mut u32, *mut c_void,
    );
    gss_delete_sec_context(*mut u32, *mut Context, *mut Buffer);
    gss_context_time(*mut u32, Context, *mut u32);
    gss_inquire_sec_context_by_oid(*mut u32, Context, Oid, *mut *mut BufferSet);
    gss_release_buffer_set(*mut u32, *mut *mut BufferSet);
    gss_export_sec_context(*mut u32, *mut Context, *mut Buffer);
    gss_import_sec_context(*mut u32, *const Buffer, *mut Context);
    gss_get_mic(*mut u32, Context, u32, *const Buffer, *mut Buffer);
    gss_verify_mic(*mut u32, Context, *const Buffer, *const Buffer, *mut u32);
    gss_wrap(*mut u32, Context, c_int, u32, *const Buffer, *mut c_int, *mut Buffer);
    gss_unwrap(*mut u32, Context, *const Buffer, *mut Buffer, *mut c_int, *mut u32);
    gss_display_status(*mut u32, u32, c_int, Oid, *mut u32, *mut Buffer);
    gss_release_buffer(*mut u32, *mut Buffer);
}

/// Loads the library and finds all functions. It stays loaded: it has data of its own per thread.
pub(crate) fn load(name: &CStr) -> Result<Functions, libloading::Error> {
    let name = name.to_string_lossy().into_owned();
    // SAFETY: the library's initializers prepare locks only. It is found by the loader's own rules,
    // as a library that the program is linked with.
    let library = unsafe { libloading::Library::new(name) }?;
    let functions = Functions::find(&library)?;
    std::mem::forget(library);
    Ok(functions)
}
