//! Two TUN devices in two network namespaces, joined by two links.
