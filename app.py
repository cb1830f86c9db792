"""The router. Each page does the rest of the setup, so that it also works as the first page of a session."""

from importlib.util import find_spec

import streamlit as st

if find_spec("sequoia_extras") is not None:  # a checkout may lack the optional packages
    import sequoia_extras  # noqa: F401

from sequoia_core.files.libraries import missing_module_message
from ui import menu, page_setup

# Set first; otherwise, the browser would fetch the default icon from a font server.
st.set_page_config(page_icon=page_setup.FAVICON)
try:
    menu.navigation().run()
except ModuleNotFoundError as error:
    st.error(missing_module_message(error, "page"))
