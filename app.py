"""The router. Everything else is set up by each page itself, so that a cold link works too."""

import streamlit as st

from ui import menu, page_setup

st.set_page_config(page_icon=page_setup.FAVICON)  # first, or the browser asks a font server for the default page's icon
menu.navigation().run()
